local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_multi_round",
  edition = 2,
  description = "Asks twice.",
  mcp = true,
  agents = {
    step1 = {
      operator = "human",
      by = "starter",
      prompt = "Step 1: What is your name?",
      output = s.object { name = s.string },
    },
    step2 = {
      operator = "human",
      by = "starter",
      prompt = "Step 2: What is your favorite color?",
      output = s.object { color = s.string },
    },
  },
  flow = function(ctx)
    local name = ctx:run("step1").name
    return name .. " likes " .. ctx:run("step2").color
  end,
}
