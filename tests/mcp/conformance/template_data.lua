local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "template_data",
  edition = 2,
  description = "Data by their id.",
  mcp = { uri = "test://template/{id}/data", mime_type = "application/json" },
  input = s.object { id = s.string },
  flow = function(ctx, input)
    return { id = input.id, templateTest = true, data = "Data for ID: " .. input.id }
  end,
}
