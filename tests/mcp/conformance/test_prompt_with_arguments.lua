local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test_prompt_with_arguments",
  edition = 2,
  description = "A prompt with two arguments.",
  mcp = { prompt = true },
  input = s.object {
    arg1 = s.string { description = "First test argument" },
    arg2 = s.string { description = "Second test argument" },
  },
  flow = function(ctx, input)
    return `Prompt with arguments: arg1='{input.arg1}', arg2='{input.arg2}'`
  end,
}
