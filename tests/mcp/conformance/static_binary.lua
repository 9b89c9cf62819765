local swarm = require("swarm")

return swarm.blueprint {
  name = "static_binary",
  edition = 2,
  description = "A picture.",
  mcp = { uri = "test://static-binary", mime_type = "image/png" },
  flow = function()
    return { blob = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==" }
  end,
}
