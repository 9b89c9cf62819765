local swarm = require("swarm")

return swarm.blueprint {
  name = "test_prompt_with_image",
  edition = 2,
  description = "A prompt with a picture.",
  mcp = { prompt = true },
  flow = function()
    return {
      content = {
        { type = "image", data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==", mimeType = "image/png" },
        { type = "text", text = "Please analyze the image above." },
      },
    }
  end,
}
