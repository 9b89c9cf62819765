local swarm = require("swarm")

return swarm.blueprint {
  name = "test_error_handling",
  edition = 2,
  description = "Fails.",
  mcp = true,
  flow = function(ctx)
    error("This tool intentionally returns an error for testing")
  end,
}
