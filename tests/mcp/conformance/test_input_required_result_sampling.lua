local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_sampling",
  edition = 2,
  description = "Asks the client's model one question.",
  mcp = true,
  agents = {
    capital_question = {
      operator = "human",
      by = "starter:model",
      prompt = "What is the capital of France?",
      output = s.string,
    },
  },
  flow = function(ctx)
    return ctx:run("capital_question")
  end,
}
