-- Plan, implement in parallel, review until it passes, then a person ships it. Small shell scripts
-- stand in for the agents, so it runs without any key:
--   moonswarm run blueprints/review-loop.lua issue="crash on empty file"
--   moonswarm inbox, then moonswarm approve TASK
local swarm = require("swarm")
local s = swarm.schema

-- The reviewer blocks what has not been fixed yet; the scripts read their input from stdin.
local PLAN = [[cat >/dev/null; printf '{"steps":["reproduce it","guard the empty case"]}']]
local CODE = [[if grep -q '"fix"'; then d="fixed"; else d="first try"; fi; printf '{"diff":"%s"}' "$d"]]
local REVIEW = [[if grep -q fixed; then printf '{"verdict":"pass","findings":[]}'
else printf '{"verdict":"blocked","findings":["there is no test"]}'; fi]]

return swarm.blueprint {
  name = "review-loop",
  edition = 2,
  description = "Plan, implement in parallel, review until it passes, then a person ships it.",
  input = s.object { issue = s.string, max_rounds = s.integer { default = 3, minimum = 1 } },

  agents = {
    planner  = { operator = "process", command = { "sh", "-c", PLAN },
                 output = s.object { steps = s.array(s.string) } },
    coder    = { operator = "process", command = { "sh", "-c", CODE },
                 retry = { max_attempts = 3, backoff = "2s" }, timeout = "20m", max_concurrency = 4 },
    reviewer = { operator = "process", command = { "sh", "-c", REVIEW },
                 output = s.object { verdict = s.enum { "pass", "blocked" }, findings = s.array(s.string) } },
    tests    = { operator = "process", command = { "sh", "-c", "echo 12 passed" }, check = false, timeout = "10m" },
    ship     = { operator = "human", output = s.object { approved = s.boolean, note = s.string { optional = true } } },
  },

  flow = function(ctx, input)
    local plan = ctx:run("planner", { issue = input.issue })

    local patches = ctx:map(plan.steps, function(step)
      return ctx:run("coder", { step = step })
    end, { concurrency = 4 })

    local passed = false
    for round = 1, input.max_rounds do
      ctx:status("review " .. round .. " of at most " .. input.max_rounds)
      local got = ctx:all {
        review = function() return ctx:run("reviewer", { patches = patches }) end,
        tests  = function() return ctx:run("tests") end,
      }
      passed = got.review.verdict == "pass" and got.tests.exit_code == 0
      if passed then break end
      patches = { ctx:run("coder", { fix = got.review.findings, log = got.tests.stderr }) }
    end

    if not passed then swarm.fail("blocked", "still blocked after " .. input.max_rounds .. " rounds") end

    local answer = ctx:run("ship", { title = "Ship it?", patches = patches })
    if not answer.approved then swarm.fail("rejected", answer.note) end
    return { shipped = patches }
  end,
}
