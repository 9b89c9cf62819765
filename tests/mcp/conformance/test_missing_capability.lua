local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_missing_capability",
  edition = 2,
  description = "Asks the client's model, and nobody else.",
  mcp = { needs = "sampling" },
  agents = {
    model = { operator = "human", by = "starter:model", prompt = "Say something.", output = s.string },
  },
  flow = function(ctx)
    return ctx:run("model")
  end,
}
