local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "greet",
  edition = 2,
  description = "Greets at once.",
  mcp = true,
  input = s.object { name = s.string },
  flow = function(ctx, input)
    return { content = { { type = "text", text = "Hello, " .. input.name .. "!" } } }
  end,
}
