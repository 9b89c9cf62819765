local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_prompt_with_embedded_resource",
  edition = 2,
  description = "A prompt with a resource.",
  mcp = { prompt = true },
  input = s.object { resourceUri = s.string { description = "URI of the resource to embed" } },
  flow = function(ctx, input)
    local resource = { uri = input.resourceUri, mimeType = "text/plain", text = "Embedded resource content for testing." }
    return {
      content = {
        { type = "resource", resource = resource },
        { type = "text", text = "Please process the embedded resource above." },
      },
    }
  end,
}
