local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_elicitation",
  edition = 2,
  description = "Asks for a name and an address.",
  mcp = true,
  input = s.object { message = s.string },
  agents = {
    user = {
      operator = "human",
      by = "starter",
      prompt = "{{ message }}",
      output = s.object { username = s.string, email = s.string },
    },
  },
  flow = function(ctx, input)
    local user = ctx:run("user", input)
    return { content = { { type = "text", text = "User response: " .. user.username } } }
  end,
}
