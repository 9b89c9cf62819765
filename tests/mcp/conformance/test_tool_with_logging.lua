local swarm = require("swarm")

return swarm.blueprint {
  name = "test_tool_with_logging",
  edition = 2,
  description = "Logs what it does.",
  mcp = true,
  flow = function(ctx)
    ctx:log("info", "Tool execution started")
    ctx:sleep("50ms")
    ctx:log("info", "Tool processing data")
    ctx:sleep("50ms")
    ctx:log("info", "Tool execution completed")
    return "done"
  end,
}
