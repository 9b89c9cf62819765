local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_sampling",
  edition = 2,
  description = "Gives a prompt to the client's model.",
  mcp = { needs = "sampling" },
  input = s.object { prompt = s.string },
  agents = {
    model = { operator = "human", by = "starter:model", prompt = "{{ prompt }}", output = s.string },
  },
  flow = function(ctx, input)
    local said = ctx:run("model", input)
    return { content = { { type = "text", text = "LLM response: " .. said } } }
  end,
}
