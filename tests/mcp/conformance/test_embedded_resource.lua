local swarm = require("swarm")

return swarm.blueprint {
  name = "test_embedded_resource",
  edition = 2,
  description = "Returns a resource.",
  mcp = true,
  flow = function(ctx)
    return { content = { { type = "resource", resource = { uri = "test://embedded-resource", mimeType = "text/plain", text = "This is an embedded resource content." } } } }
  end,
}
