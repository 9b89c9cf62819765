//! What was promised to authors, word by word: it runs as it stands.

use crate::support::Shell;

/// A whole blueprint with every kind of agent.
pub const REVIEW_LOOP: &str = r#"local swarm = require("swarm")
local s = swarm.schema

return swarm.blueprint {
  name = "review-loop",
  description = "Plan, implement in parallel, review until it passes, then a person ships it.",
  input = s.object { issue = s.string, max_rounds = s.integer { default = 3, minimum = 1 } },

  agents = {
    planner  = { operator = "main-ai", worker = { subagent_type = "planner" },
                 system = "You plan work on {{ input.issue | upper }}.",
                 output = s.object { steps = s.array(s.string) } },
    coder    = { operator = "main-ai", worker = { subagent_type = "coder", tools = { "Read", "Edit", "Bash" } },
                 retry = { max_attempts = 3, backoff = "2s" }, timeout = "20m", max_concurrency = 4 },
    reviewer = swarm.agent_md("agents/reviewer.md", { operator = "main-ai", worker = { subagent_type = "reviewer" },
                 output = s.object { verdict = s.enum { "pass", "blocked" }, findings = s.array(s.string) } }),
    tests    = { operator = "process", command = { "cargo", "test", "--quiet" }, check = false, timeout = "10m" },
    ship     = { operator = "human", output = s.object { approved = s.boolean, note = s.string { optional = true } } },
  },

  flow = function(ctx, input)
    local plan = ctx:run("planner", { issue = input.issue })

    local patches = ctx:map(plan.steps, function(step)
      return ctx:run("coder", { step = step })
    end, { concurrency = 4 })

    local passed = false
    for round = 1, input.max_rounds do
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
"#;

/// The test of it.
const REVIEW_TEST: &str = r#"local t = require("swarm.test")
t.test("a blocked review is fixed once", function()
  local run = t.start("review-loop.lua", { issue = "crash on empty file" })
  run:mock("planner", { steps = { "guard" } })
  run:mock("coder", function(input) return { diff = "…" } end)
  run:mock_sequence("reviewer", { { verdict = "blocked", findings = { "no test" } }, { verdict = "pass", findings = {} } })
  run:mock("tests", { exit_code = 0 })
  run:answer("ship", { approved = true })
  local out = run:finish()
  t.equal(run:count("coder"), 2)
  t.match(out, { shipped = {} })
end)
t.test("a rejection and a limit of rounds end it", function()
  local blocked = t.start("review-loop.lua", { issue = "x", max_rounds = 2 })
  blocked:mock("planner", { steps = {} })
  blocked:mock("coder", {})
  blocked:mock("reviewer", { verdict = "blocked", findings = {} })
  blocked:mock("tests", { exit_code = 1, stderr = "no" })
  t.match(blocked:fails("blocked"), { message = "still blocked after 2 rounds" })
end)
"#;

/// What stands around every task, and what starts a run.
const AROUND: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "around",
  agents = { coder = { operator = "queue", queue = "q" }, planner = { operator = "echo" } },
  middleware = {                                   -- around every ctx:run, outermost first
    function(task, next)                            -- task: { agent, input, opts }
      if task.agent == "coder" then task.opts.timeout = "30m" end
      local result = next(task)
      return result
    end,
    swarm.middleware.budget { usd = "2.50", tokens = 200000 },
    swarm.middleware.cache { agents = { "planner" }, ttl = "1h" },
  },
  limits = { steps = 5000, depth = 4, wall = "6h" },
  on = {
    { schedule = "0 7 * * 1-5", zone = "Europe/Berlin", input = { kind = "nightly" } },
    { signal = "issue-opened" },
    { watch = "inbox/**/*.json", settle = "2s" },
  },
  flow = function(ctx, input)
    local plan = ctx:run("planner", { n = 1 })
    local ok, err = pcall(function() return ctx:run("coder", plan) end)
    return { plan = plan, timed_out = err.kind, now = ctx:now() }
  end,
}
"#;

/// The same as a table.
const TABLE: &str = r#"local swarm = require("swarm")
local n = swarm.nodes
return swarm.blueprint {
  name = "table",
  agents = { planner = { operator = "echo" }, coder = { operator = "echo" }, reviewer = { operator = "echo" } },
  flow = n.seq {
    n.step { id = "plan", agent = "planner", input = { steps = { "{{ input.issue }}" } } },
    n.map  { id = "patches", over = "plan.steps", as = "step", concurrency = 4,
             body = n.step { agent = "coder", input = { step = "{{ step }}" } } },
    n.loop { max = 3, until_ = "review.verdict == 'pass'",
             body = n.step { id = "review", agent = "reviewer", input = { patches = "{{ patches }}", verdict = "pass" } } },
    n.switch { on = "review.verdict", cases = { pass = n.approve { id = "ship", title = "Ship it?" } }, default = n.fail { kind = "blocked" } },
  },
}
"#;

const REST: &str = r#"local t = require("swarm.test")
t.test("the function around a task gives it its time", function()
  local run = t.start("around.lua", {})
  run:mock("coder", t.failure { kind = "timeout" })
  local out = run:finish()
  t.match(out, { plan = { n = 1 }, timed_out = "timeout" })
  t.ok(out.now > 0)
end)
t.test("the table ends with a person's answer", function()
  local run = t.start("table.lua", { issue = "x" })
  run:answer("approve", { approved = true })
  t.equal(run:finish(), { approved = true })
  t.equal(run:inputs("coder"), { { step = "x" } })
end)
"#;

#[test]
fn the_snippets_of_the_contract_run_also_when_the_host_dies_after_any_write() {
    let shell = Shell::new();
    shell.write("review-loop.lua", REVIEW_LOOP);
    shell.write("agents/reviewer.md", "---\nname: reviewer\n---\nYou review.\n");
    shell.write("review-loop_test.lua", REVIEW_TEST);
    shell.write("around.lua", AROUND);
    shell.write("table.lua", TABLE);
    shell.write("rest_test.lua", REST);
    shell.run(&["test", "--crash", "."]).ok().says(&["4 passed, 0 failed"]);
    for file in ["review-loop.lua", "around.lua", "table.lua"] {
        shell.run(&["check", file]).ok().says(&["no findings"]);
        let drawn = shell.run(&["graph", file, "--format", "mermaid"]).ok();
        assert!(drawn.stdout.starts_with("flowchart"), "{drawn:?}");
    }
}
