local swarm = require("swarm")

return swarm.blueprint {
  name = "test_multiple_content_types",
  edition = 2,
  description = "Returns a text, an image and a resource.",
  mcp = true,
  flow = function(ctx)
    return {
      content = {
        { type = "text", text = "Multiple content types test:" },
        { type = "image", data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==", mimeType = "image/png" },
        { type = "resource", resource = { uri = "test://mixed-content-resource", mimeType = "application/json", text = '{"test":"data","value":123}' } },
      },
    }
  end,
}
