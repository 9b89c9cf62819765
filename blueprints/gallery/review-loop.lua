-- Plan, implement in parallel, review until it passes, then a person ships it.
local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "review-loop",
  edition = 2,
  description = "Plans, implements in parallel, reviews until it passes; a person ships it.",
  input = s.object { issue = s.string, max_rounds = s.integer { default = 3, minimum = 1 } },

  agents = {
    planner  = { operator = "main-ai", worker = { subagent_type = "planner" },
                 system = "You plan the work on: {{ issue }}", input = s.object { issue = s.string },
                 output = s.object { steps = s.array(s.string) } },
    coder    = { operator = "main-ai", worker = { subagent_type = "coder", tools = { "Read", "Edit", "Bash" } },
                 retry = { max_attempts = 3, backoff = "2s" }, timeout = "20m", max_concurrency = 4 },
    reviewer = { operator = "main-ai", worker = { subagent_type = "reviewer", tools = { "Read" } },
                 output = s.object { verdict = s.enum { "pass", "blocked" }, findings = s.array(s.string) } },
    tests    = { operator = "process", command = { "sh", "-c", "${TEST_COMMAND:-make test}" }, check = false, timeout = "10m" },
    ship     = { operator = "human", output = s.object { approved = s.boolean, note = s.string { optional = true } } },
  },

  flow = function(ctx, input)
    local plan = ctx:run("planner", { issue = input.issue })
    local patches = ctx:map(plan.steps, function(step)
      return ctx:run("coder", { step = step })
    end, { concurrency = 4 })

    for round = 1, input.max_rounds do
      ctx:status("review " .. round .. " of at most " .. input.max_rounds)
      local got = ctx:all {
        review = function() return ctx:run("reviewer", { patches = patches }) end,
        tests  = function() return ctx:run("tests") end,
      }
      if got.review.verdict == "pass" and got.tests.exit_code == 0 then
        local answer = ctx:run("ship", { title = "Ship it?", patches = patches })
        if not answer.approved then swarm.fail("rejected", answer.note) end
        return { shipped = patches, rounds = round }
      end
      patches = { ctx:run("coder", { fix = got.review.findings, log = got.tests.stderr }) }
    end
    swarm.fail("blocked", "still blocked after " .. input.max_rounds .. " rounds")
  end,
}
