local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_tampered_state",
  edition = 2,
  description = "Asks for a confirmation.",
  mcp = true,
  agents = {
    confirm = {
      operator = "human",
      by = "starter",
      prompt = "Please confirm",
      output = s.object { ok = s.boolean },
    },
  },
  flow = function(ctx)
    return ctx:run("confirm").ok
  end,
}
