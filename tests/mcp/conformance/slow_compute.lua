local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "slow_compute",
  edition = 2,
  description = "Takes as many seconds as it is told.",
  mcp = true,
  input = s.object { seconds = s.number { default = 0 } },
  flow = function(ctx, input)
    if input.seconds > 0 then
      ctx:sleep(string.format("%dms", input.seconds * 1000))
    end
    return { content = { { type = "text", text = "done after " .. input.seconds .. " s" } } }
  end,
}
