local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_capabilities",
  edition = 2,
  description = "Asks only a client that can be asked.",
  mcp = true,
  agents = {
    name = {
      operator = "human",
      by = "starter",
      prompt = "What is your name?",
      output = s.object { name = s.string },
    },
  },
  flow = function(ctx)
    return ctx:run("name").name
  end,
}
