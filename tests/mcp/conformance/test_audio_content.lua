local swarm = require("swarm")

return swarm.blueprint {
  name = "test_audio_content",
  edition = 2,
  description = "Returns a sound.",
  mcp = true,
  flow = function(ctx)
    return { content = { { type = "audio", data = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA==", mimeType = "audio/wav" } } }
  end,
}
