local swarm = require("swarm")

return swarm.blueprint {
  name = "test_simple_text",
  edition = 2,
  description = "Returns a text.",
  mcp = true,
  flow = function(ctx)
    return { content = { { type = "text", text = "This is a simple text response for testing." } } }
  end,
}
