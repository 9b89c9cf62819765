local swarm = require("swarm")

return swarm.blueprint {
  name = "test_logging_tool",
  edition = 2,
  description = "Logs one line.",
  mcp = true,
  flow = function(ctx)
    ctx:log("info", "a line")
    return "logged"
  end,
}
