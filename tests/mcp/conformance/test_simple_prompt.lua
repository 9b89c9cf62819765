local swarm = require("swarm")

return swarm.blueprint {
  name = "test_simple_prompt",
  edition = 2,
  description = "A prompt without arguments.",
  mcp = { prompt = true },
  flow = function()
    return "This is a simple prompt for testing."
  end,
}
