local swarm = require("swarm")

return swarm.blueprint {
  name = "slow_compute",
  edition = 2,
  description = "Takes as many seconds as it is told.",
  mcp = true,
  input = { type = "object", properties = { seconds = { type = "number" }, label = { type = "string" } } },
  flow = function(ctx, input)
    local seconds = input.seconds or 0
    if seconds > 0 then
      ctx:sleep(string.format("%dms", seconds * 1000))
    end
    return { content = { { type = "text", text = "done after " .. seconds .. " s" } } }
  end,
}
