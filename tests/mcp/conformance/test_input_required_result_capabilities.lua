local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_input_required_result_capabilities",
  edition = 2,
  description = "Asks for a name and for a greeting, and of a client only what it can be asked for.",
  mcp = true,
  agents = {
    name = {
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
  },
  flow = function(ctx)
    local who, greeting
    ctx:all {
      function() who = ctx:run("name").name end,
      function() greeting = ctx:run("greeting") end,
    }
    return greeting .. " " .. who
  end,
}
