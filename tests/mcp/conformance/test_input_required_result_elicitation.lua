local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_elicitation",
  edition = 2,
  description = "Asks for a name.",
  mcp = true,
  agents = {
    user_name = {
      operator = "human",
      by = "starter",
      prompt = "What is your name?",
      output = s.object { name = s.string },
    },
  },
  flow = function(ctx)
    return { content = { { type = "text", text = "Hello, " .. ctx:run("user_name").name .. "!" } } }
  end,
}
