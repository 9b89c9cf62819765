-- Asks the preferred model, and another provider if that one fails. Both are operators of
-- moonswarm.toml in this directory, where they are scripts: everything runs without a key.
local swarm = require("swarm")
local s = swarm.schema

local SYSTEM = "You summarize release notes in one sentence."

return swarm.blueprint {
  name = "model-fallback",
  edition = 2,
  description = "Tries one model after the other.",
  input = s.object { text = s.string },

  agents = {
    preferred = { operator = "model", system = SYSTEM, prompt = "{{ text }}", max_turns = 1,
                  retry = { max_attempts = 2, backoff = "1s" } },
    backup    = { operator = "backup", system = SYSTEM, prompt = "{{ text }}", max_turns = 1 },
  },

  flow = function(ctx, input)
    local failure
    for _, agent in ipairs { "preferred", "backup" } do
      local summary, err = ctx:try(agent, { text = input.text })
      if summary then return { summary = summary, by = agent } end
      ctx:log("warn", agent .. " failed: " .. err.message)
      failure = err
    end
    error(failure)
  end,
}
