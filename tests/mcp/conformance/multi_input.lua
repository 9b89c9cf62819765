local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "multi_input",
  edition = 2,
  description = "Asks two things at once.",
  mcp = true,
  agents = {
    first = { operator = "human", by = "starter", prompt = "First?", output = s.object { name = s.string { optional = true } } },
    second = { operator = "human", by = "starter", prompt = "Second?", output = s.object { name = s.string { optional = true } } },
  },
  flow = function(ctx)
    ctx:all { function() return ctx:run("first") end, function() return ctx:run("second") end }
    return { content = { { type = "text", text = "both were answered" } } }
  end,
}
