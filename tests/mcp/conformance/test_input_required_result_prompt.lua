local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_prompt",
  edition = 2,
  description = "A prompt that asks.",
  mcp = { prompt = true },
  agents = {
    user_context = {
      operator = "human",
      by = "starter",
      prompt = "What context should the prompt use?",
      output = s.object { context = s.string },
    },
  },
  flow = function(ctx)
    return "In the context of " .. ctx:run("user_context").context
  end,
}
