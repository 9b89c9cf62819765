local swarm = require("swarm")

return swarm.blueprint {
  name = "test_tool_with_progress",
  edition = 2,
  description = "Tells its progress.",
  mcp = true,
  flow = function(ctx)
    for _, part in ipairs({ "0/100", "50/100", "100/100" }) do
      ctx:status(part)
      ctx:sleep("50ms")
    end
    return "done"
  end,
}
