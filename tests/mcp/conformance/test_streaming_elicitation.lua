local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_streaming_elicitation",
  edition = 2,
  description = "Tells how far it is, and asks for a name.",
  mcp = true,
  agents = {
    name = { operator = "human", by = "starter", prompt = "What is your name?", output = s.object { name = s.string } },
  },
  flow = function(ctx)
    ctx:status("about to ask")
    return ctx:run("name").name
  end,
}
