-- The child of fan-out.lua: checks one repository. It can be run by itself as well.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "fan-out-item",
  edition = 2,
  description = "Checks whether a repository can be read.",
  input = s.object { repository = s.string },
  output = s.object { healthy = s.boolean },
  limits = { wall = "10m" },

  agents = {
    probe = { operator = "process", command = { "git", "ls-remote", "--heads", "{{ repository }}" },
              check = false, timeout = "1m", env = { GIT_TERMINAL_PROMPT = "0" } },
  },

  flow = function(ctx, input)
    if input.repository == "" then swarm.fail("no_name", "the repository has no name") end
    return { healthy = ctx:run("probe", { repository = input.repository }).exit_code == 0 }
  end,
}
