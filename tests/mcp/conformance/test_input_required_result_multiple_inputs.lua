local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_multiple_inputs",
  edition = 2,
  description = "Asks the client's user, its model, and where it works, at once.",
  mcp = true,
  agents = {
    user_name = {
      operator = "human",
      by = "starter",
      prompt = "What is your name?",
      output = s.object { name = s.string },
    },
    greeting = {
      operator = "human",
      by = "starter:model",
      prompt = "Generate a greeting",
      output = s.string,
    },
    client_roots = {
      operator = "human",
      by = "starter:roots",
      prompt = "Where do you work?",
      output = s.array(s.object { uri = s.string, name = s.string { optional = true } }),
    },
  },
  flow = function(ctx)
    local who, greeting, roots
    ctx:all {
      function() who = ctx:run("user_name").name end,
      function() greeting = ctx:run("greeting") end,
      function() roots = #ctx:run("client_roots") end,
    }
    return `{greeting} {who}, in {roots}`
  end,
}
