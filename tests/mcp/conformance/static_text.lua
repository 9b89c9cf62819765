local swarm = require("swarm")

return swarm.blueprint {
  name = "static_text",
  edition = 2,
  description = "A text.",
  mcp = { uri = "test://static-text", mime_type = "text/plain" },
  flow = function()
    return "This is the content of the static text resource."
  end,
}
