local swarm = require("swarm")

return swarm.blueprint {
  name = "test_image_content",
  edition = 2,
  description = "Returns an image.",
  mcp = true,
  flow = function(ctx)
    return { content = { { type = "image", data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==", mimeType = "image/png" } } }
  end,
}
