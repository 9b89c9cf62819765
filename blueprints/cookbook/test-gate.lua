-- A coding agent changes files until the tests pass. The flow runs the tests itself: what the
-- agent says about them does not count.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "test-gate",
  edition = 2,
  description = "Lets a coding agent work until the tests pass, at most a few rounds.",
  input = s.object {
    task = s.string,
    test = s.string { default = "make test" },
    rounds = s.integer { default = 3, minimum = 1, maximum = 10 },
  },
  limits = { usd = "5.00", wall = "4h" },

  agents = {
    coder = {
      operator = "main-ai", worker = { subagent_type = "coder", tools = { "Read", "Edit", "Bash" } },
      timeout = "1h", output = s.object { summary = s.string },
      prompt = "{{ task }}{% if log %}\n\nThe tests fail:\n{{ log }}{% endif %}",
    },
    tests = { operator = "process", command = { "sh", "-c", "{{ command }}" }, check = false, timeout = "20m" },
  },

  flow = function(ctx, input)
    local log = ""
    for round = 1, input.rounds do
      ctx:status("round " .. round .. " of " .. input.rounds)
      local change = ctx:run("coder", { task = input.task, log = log })
      local tests = ctx:run("tests", { command = input.test })
      if tests.exit_code == 0 then return { summary = change.summary, rounds = round } end
      log = string.sub(tests.stdout .. tests.stderr, -4000)
    end
    swarm.fail("tests_fail", "the tests still fail after " .. input.rounds .. " rounds", { log = log })
  end,
}
