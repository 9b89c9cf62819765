use std::path::PathBuf;

use super::*;
use crate::operator::Declared;

const LOOP: &str = r#"
local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "review",
  input = s.object { issue = s.string },
  agents = {
    coder = { operator = "main-ai", worker = { subagent_type = "coder" }, retry = { max_attempts = 2, backoff = "1h" } },
    reviewer = { operator = "process", command = { "x" }, output = s.object { verdict = s.enum { "pass", "blocked" } } },
    sum = { operator = "lua", fn = function(input) return input.a + 1 end },
    ship = { operator = "human", output = s.object { approved = s.boolean } },
  },
  flow = function(ctx, input)
    local patches = ctx:map({ 1, 2, 3 }, function(n) return ctx:run("coder", { n = n }) end)
    ctx:sleep("2d")
    local rounds = 0
    repeat
      rounds = ctx:run("sum", { a = rounds })
    until ctx:run("reviewer", { patches = patches }).verdict == "pass" or rounds == 3
    local go = ctx:wait("go", { timeout = "1d" })
    if not ctx:run("ship", { rounds = rounds }).approved then swarm.fail("rejected", "no") end
    return { rounds = rounds, go = go }
  end,
}"#;

fn play(test: &str, options: &Options<'_>) -> (tempfile::TempDir, FileReport) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("review.lua"), LOOP).unwrap();
    let path = dir.path().join("review_test.lua");
    std::fs::write(&path, format!("local t = require(\"swarm.test\")\n{test}")).unwrap();
    let known = Declared::default().alone();
    let report = run(&path, &known, options, &Clock::manual(0));
    (dir, report)
}

const PLAIN: Options<'_> =
    Options { filter: None, crash: false, snapshots: Snapshots::WriteNew, coverage: None };

const WHOLE: &str = r#"
t.test("blocked once, then shipped", function()
  local run = t.start("review.lua", { issue = "x" })
  local calls = 0
  run:mock("coder", function(input)
    calls = calls + 1
    if input.n == 2 and calls < 4 then error({ kind = "worker", message = "not yet", retryable = true }) end
    return { diff = input.n }
  end)
  run:mock_sequence("reviewer", { { verdict = "blocked" }, { verdict = "pass" } })
  run:answer("ship", { approved = true })
  t.equal(run:status(), "waiting")
  run:advance("3d")
  run:signal("go", { by = "me" })
  t.equal(run:finish(), { rounds = 2, go = { by = "me" } })
  t.equal(run:count("reviewer"), 2)
  t.equal(run:inputs("coder")[3], { n = 3 })
  t.equal(run:inputs("reviewer")[1].patches[2], { diff = 2 })
  run:snapshot("chain")
end)
"#;

#[test]
fn a_whole_run_is_played_in_no_time_and_again_after_every_crash() {
    let (dir, report) = play(WHOLE, &Options { crash: true, ..PLAIN });
    assert!(report.broken.is_none(), "{report:?}");
    let test = &report.tests[0];
    assert_eq!(test.problem(), None);
    assert!(test.crashes > 15, "{test:?}");
    let snapshot = dir.path().join("snapshots/review_test/chain.json");
    assert!(std::fs::read_to_string(snapshot).unwrap().contains("task reviewer completed"));
}

fn problem(body: &str) -> String {
    let test = format!(
        "t.test(\"x\", function() local run = t.start(\"review.lua\", {{ issue = \"x\" }}) {body} end)"
    );
    let (_dir, report) = play(&test, &PLAIN);
    assert!(report.broken.is_none(), "{report:?}");
    report.tests[0].problem().unwrap_or_default()
}

#[test]
fn what_a_test_forgot_is_said() {
    assert!(
        problem("run:finish()").contains("write run:mock(\"coder\", …)"),
        "{}",
        problem("run:finish()")
    );
    let mocked =
        "run:mock(\"coder\", 1) run:mock_sequence(\"reviewer\", { { verdict = \"blocked\" } })";
    let found = problem(&format!("{mocked} run:finish()"));
    assert!(found.contains("once more than its 1 answers"), "{found}");
    let mocked = "run:mock(\"coder\", 1) run:mock(\"reviewer\", { verdict = \"pass\" })";
    let found = problem(&format!("{mocked} run:finish()"));
    assert!(found.contains("waits for") && found.contains("ship"), "{found}");
    let found = problem(&format!("{mocked} run:reject(\"ship\", \"never\") run:finish()"));
    assert!(found.contains("human_rejected") && found.contains("never"), "{found}");
    let found = problem(&format!(
        "{mocked} run:answer(\"ship\", {{ approved = false }}) run:fails(\"other\")"
    ));
    assert!(found.contains("failed with rejected"), "{found}");
    assert_eq!(
        problem(&format!(
            "{mocked} run:answer(\"ship\", {{ approved = false }}) run:fails(\"rejected\")"
        )),
        ""
    );
    assert!(problem("t.start(\"none.lua\")").contains("none.lua"));
}

const HELPER: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "help",
  agents = {
    helper = {
      operator = "model", max_turns = 3, max_duration = "1h",
      tools = {
        "clerk",
        { name = "add", fn = function(it) return it.a + it.b end },
        { operator = "process", name = "list" },
        { state = "write", prefix = "notes/" },
      },
    },
    clerk = { operator = "model" },
  },
  flow = function(ctx, input)
    local said = ctx:run("helper", input)
    return { said = said, note = ctx.state:get("notes/sum") }
  end,
}"#;

/// The outcome of a test of an agent with a model.
fn helped(body: &str, options: &Options<'_>) -> TestReport {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("help.lua"), HELPER).unwrap();
    let path = dir.path().join("help_test.lua");
    let test = format!(
        "local t = require(\"swarm.test\") t.test(\"x\", function()
           local run = t.start(\"help.lua\", \"two and two?\") {body} end)"
    );
    std::fs::write(&path, test).unwrap();
    let section = "[operators.model]\nkind = \"llm\"\napi = \"script\"";
    let known = section.parse::<Declared>().unwrap().alone();
    let mut report = run(&path, &known, options, &Clock::manual(0));
    assert!(report.broken.is_none(), "{report:?}");
    report.tests.remove(0)
}

#[test]
fn a_models_turns_are_given_and_its_loop_runs_also_across_crashes() {
    let whole = r#"
      run:model("helper", {
        { calls = { { name = "add", arguments = { a = 2, b = 2 } }, { name = "clerk", arguments = { input = "is it?" } },
          { name = "list", arguments = {} } } },
        { calls = { { name = "state_set", arguments = { key = "sum", value = 4 } } } },
        { text = "It is 4." },
      })
      run:model("clerk", function(request)
        return "yes, " .. request.items[1].content[1].text
      end)
      run:mock("helper/list", { files = 2 })
      t.equal(run:finish(), { said = "It is 4.", note = 4 })
      local outputs = {}
      for _, step in ipairs(run:steps()) do
        if step.kind == "tool_call" then table.insert(outputs, step.output) end
      end
      t.match(outputs, { 4, "yes, is it?", { files = 2 } })
    "#;
    let test = helped(whole, &Options { crash: true, ..PLAIN });
    assert_eq!(test.problem(), None);
    assert!(test.crashes > 8, "{test:?}");
    let limited = r#"
      run:model("helper", function() return { calls = { { name = "add", arguments = { a = 1, b = 1 } } } } end)
      t.ok(string.find(run:fails("limit").message, "asked 3 time(s)", 1, true))
    "#;
    assert_eq!(helped(limited, &PLAIN).problem(), None);
}

#[test]
fn who_tests_an_agent_with_a_model_is_told_what_to_write() {
    let problem = |body: &str| helped(body, &PLAIN).problem().unwrap_or_default();
    let nobody = problem("run:finish()");
    assert!(nobody.contains("run:mock(\"helper\", …)"), "{nobody}");
    assert!(nobody.contains("run:model(\"helper\", { … })"), "{nobody}");
    let calls = "{ calls = { { name = \"add\", arguments = { a = 1, b = 1 } } } }";
    let short = problem(&format!("run:model(\"helper\", {{ {calls} }}) run:finish()"));
    assert!(short.contains("asked for its turn 2, and has 1"), "{short}");
    assert!(problem("run:model(\"helper\", {})").contains("takes a list of turns"));
    let wrong = problem("run:model(\"helper\", { { says = \"x\" } })");
    assert!(wrong.contains("unknown field `says`"), "{wrong}");
    let mocked = "run:mock(\"helper\", \"4\") t.equal(run:finish().said, \"4\")";
    assert_eq!(problem(mocked), "");
}

#[test]
fn a_fault_that_only_a_crash_shows_is_found() {
    // What the flow does twice after a crash: an agent that must not be interrupted.
    let source = LOOP.replace("backoff = \"1h\"", "on_interrupt = \"fail\"");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("review.lua"), source).unwrap();
    let path = dir.path().join("a_test.lua");
    let test = "local t = require(\"swarm.test\")\nt.test(\"x\", function()\n local run = t.start(\"review.lua\", { issue = \"x\" })\n \
        run:mock(\"coder\", 1) run:mock(\"reviewer\", { verdict = \"pass\" }) run:mock(\"ship\", { approved = true })\n run:finish()\nend)";
    std::fs::write(&path, test).unwrap();
    let known = Declared::default().alone();
    let report = run(&path, &known, &Options { crash: true, ..PLAIN }, &Clock::manual(0));
    let found = report.tests[0].problem().unwrap();
    assert!(found.contains("only when the host dies"), "{found}");
}

#[test]
fn an_export_answers_for_its_agents() {
    let lines = concat!(
        "{\"run\":{\"format\":\"moonswarm.run\",\"version\":1}}\n",
        "{\"entry\":{\"fact\":{\"step_scheduled\":{\"step\":1,\"kind\":\"task\",\"name\":\"coder\"}}}}\n",
        "{\"entry\":{\"fact\":{\"step_ended\":{\"step\":1,\"outcome\":{\"completed\":{\"d\":1}}}}}}\n",
        "{\"entry\":{\"fact\":{\"step_recorded\":[{\"step\":2,\"kind\":\"task\",\"name\":\"coder\"},{\"failed\":{\"kind\":\"worker\",\"message\":\"no\"}}]}}}\n",
    );
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("review.lua"), LOOP).unwrap();
    std::fs::write(dir.path().join("run.jsonl"), lines).unwrap();
    let path = dir.path().join("a_test.lua");
    let test = "local t = require(\"swarm.test\")\nt.test(\"x\", function()\n local run = t.start(\"review.lua\", { issue = \"x\" })\n \
        run:mock_recorded(\"run.jsonl\")\n run:mock(\"reviewer\", 1)\n run:fails(\"worker\")\nend)";
    std::fs::write(&path, test).unwrap();
    let known = Declared::default().alone();
    let report = run(&path, &known, &PLAIN, &Clock::manual(0));
    // The third task of the map finds the recording at its end.
    assert!(report.tests[0].problem().unwrap_or_default().contains("its 2 answers"), "{report:?}");
}

const ASKS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "asks",
  agents = { ship = { operator = "human", timeout = "1h", retry = { max_attempts = 1 } } },
  flow = function(ctx)
    local said = {}
    for n = 1, 3 do
      local answer, err = ctx:try("ship", { n = n })
      said[n] = if err then err.kind else answer.approved
    end
    return { said, ctx:approve { title = "Well?", required = 2 }.note }
  end,
}"#;

/// The outcome of a test of a flow that asks people only, beside the export of such a run.
fn asked(body: &str, options: &Options<'_>) -> TestReport {
    let lines = concat!(
        "{\"run\":{\"format\":\"moonswarm.run\",\"version\":1}}\n",
        "{\"entry\":{\"fact\":{\"step_scheduled\":{\"step\":1,\"kind\":\"task\",\"name\":\"ship\"}}}}\n",
        "{\"entry\":{\"fact\":{\"step_ended\":{\"step\":1,\"outcome\":{\"completed\":{\"approved\":true}}}}}}\n",
        "{\"entry\":{\"fact\":{\"step_scheduled\":{\"step\":2,\"kind\":\"task\",\"name\":\"ship\"}}}}\n",
        "{\"entry\":{\"fact\":{\"step_ended\":{\"step\":2,\"outcome\":{\"failed\":{\"kind\":\"human_rejected\",\"message\":\"no\"}}}}}}\n",
        "{\"entry\":{\"fact\":{\"step_scheduled\":{\"step\":3,\"kind\":\"task\",\"name\":\"ship\"}}}}\n",
        "{\"entry\":{\"fact\":{\"step_ended\":{\"step\":3,\"outcome\":{\"failed\":{\"kind\":\"timeout\",\"message\":\"late\"}}}}}}\n",
        "{\"entry\":{\"fact\":{\"step_scheduled\":{\"step\":4,\"kind\":\"task\",\"name\":\"approve\"}}}}\n",
        "{\"entry\":{\"fact\":{\"decided\":{\"answered\":{\"step\":4,\"output\":{\"approved\":true,\"note\":\"a\"},\"missing\":1}}}}}\n",
        "{\"entry\":{\"fact\":{\"decided\":{\"answered\":{\"step\":4,\"output\":{\"approved\":true,\"note\":\"b\"},\"missing\":0}}}}}\n",
        "{\"entry\":{\"fact\":{\"step_ended\":{\"step\":4,\"outcome\":{\"completed\":{\"approved\":true,\"note\":\"b\"}}}}}}\n",
    );
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("asks.lua"), ASKS).unwrap();
    std::fs::write(dir.path().join("run.jsonl"), lines).unwrap();
    let path = dir.path().join("a_test.lua");
    let test = format!(
        "local t = require(\"swarm.test\")\nt.test(\"x\", function()\n\
         local run = t.start(\"asks.lua\")\n{body}\nend)"
    );
    std::fs::write(&path, test).unwrap();
    let known = Declared::default().alone();
    let mut report = run(&path, &known, options, &Clock::manual(0));
    assert!(report.broken.is_none(), "{report:?}");
    report.tests.remove(0)
}

#[test]
fn people_answer_one_after_the_other_and_as_recorded() {
    let in_order = r#"
      run:mock_sequence("ship", {
        { approved = true },
        t.failure { kind = "human_rejected", message = "no" },
        t.failure { kind = "timeout", message = "late" },
      })
      run:mock_sequence("approve", { { approved = true, note = "a" }, { approved = true, note = "b" } })
      t.equal(run:finish(), { { true, "human_rejected", "timeout" }, "b" })
    "#;
    assert_eq!(asked(in_order, &Options { crash: true, ..PLAIN }).problem(), None);
    let recorded = r#"
      run:mock_recorded("run.jsonl")
      t.equal(run:finish(), { { true, "human_rejected", "timeout" }, "b" })
    "#;
    assert_eq!(asked(recorded, &PLAIN).problem(), None);
    let short = r#"run:mock_sequence("ship", { { approved = true } }) run:finish()"#;
    let found = asked(short, &PLAIN).problem().unwrap_or_default();
    assert!(found.contains("`ship` was asked once more than its 1 answers"), "{found}");
    // What the test says itself goes first.
    let own = r#"
      run:mock_recorded("run.jsonl")
      run:reject("ship", "mine")
      t.equal(run:finish()[1], { "human_rejected", true, "human_rejected" })
    "#;
    assert!(asked(own, &PLAIN).problem().unwrap_or_default().is_empty());
}

#[test]
fn reports_are_lines_for_people_and_junit_for_machines() {
    let test = |name: &str, failed| TestReport {
        name: name.into(),
        line: Some(1),
        took_ms: 1_234,
        crashes: 2,
        failed,
        after_crash: None,
        said: vec!["hi".into()],
        findings: Vec::new(),
    };
    let report = FileReport {
        path: PathBuf::from("a_test.lua"),
        broken: None,
        tests: vec![test("fine", None), test("<bad>", Some(Failure::new("assertion", "a & b\nc")))],
    };
    let shown = lines(&report).join("\n");
    assert!(shown.contains("ok   a_test.lua: fine (1234 ms, 2 crashes)"), "{shown}");
    assert!(shown.contains("FAIL a_test.lua: <bad>"), "{shown}");
    let xml = junit(&[report]);
    assert!(xml.contains("<testcase name=\"&lt;bad&gt;\" classname=\"a_test.lua\" time=\"1.234\"><failure message=\"a &amp; b\">a &amp; b&#10;c</failure>"), "{xml}");
    let broken =
        FileReport { path: "b".into(), broken: Some(Failure::new("x", "y")), tests: vec![] };
    assert_eq!(summary(&[broken]), ("0 passed, 0 failed, 1 file(s) broken".to_owned(), false));
}

#[test]
fn the_lines_that_ran_in_tests_are_counted_also_those_of_modules_and_agents() {
    let blueprint = r#"local swarm = require("swarm")
local rules = require("./rules")
return swarm.blueprint {
  name = "covered",
  agents = { double = { operator = "lua", fn = function(input)
    if input.n > 10 then
      return { n = 0 }
    end
    return { n = input.n * 2 }
  end } },
  flow = function(ctx, input)
    local got = ctx:run("double", { n = input.n })
    if rules.large(got.n) then
      return "large"
    end
    return "small"
  end,
}
"#;
    let rules = "local rules = {}\nfunction rules.large(n)\n  return n > 5\nend\nfunction rules.unused()\n  return 1\nend\nreturn rules\n";
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("covered.lua", blueprint);
    write("rules.lua", rules);
    write(
        "covered_test.lua",
        "local t = require(\"swarm.test\")\nt.test(\"small\", function()\n \
         t.equal(t.start(\"./covered.lua\", { n = 1 }):finish(), \"small\")\nend)",
    );
    let known = Declared::default().alone();
    let recorder = Recorder::default();
    let played = |crash| {
        let options = Options { crash, coverage: Some(&recorder), ..PLAIN };
        let path = dir.path().join("covered_test.lua");
        let report = run(&path, &known, &options, &Clock::manual(0));
        assert_eq!(report.tests[0].problem(), None);
        recorder.take()
    };
    let files = played(false);
    let of = |name: &str| {
        files.iter().find(|it| it.path == dir.path().join(name)).expect("it was loaded").clone()
    };
    let flow = of("covered.lua");
    assert_eq!(flow.missed(), [(7, 7), (14, 14)], "{flow:?}");
    assert!(flow.counts.lines[&9] > 0 && flow.counts.lines[&16] > 0);
    assert_eq!(of("rules.lua").missed(), [(6, 6)]);
    assert_eq!(files.len(), 2, "the test itself is not counted: {files:?}");
    assert_eq!(played(true), files, "crashes count nothing twice");
    assert!(recorder.take().is_empty());
}

#[test]
fn the_nodes_that_ran_in_tests_are_counted_of_flows_in_lua_and_in_json() {
    let lua = r#"local swarm = require("swarm")
local n = swarm.nodes
return swarm.blueprint {
  name = "branching",
  agents = { e = { operator = "echo" } },
  flow = n.seq {
    n.step { id = "got", agent = "e", input = "{{ input.n }}" },
    n.branch {
      if_ = "got > 5",
      then_ = n.fail { kind = "large" },
      else_ = n.loop { max = 3, body = n.step { agent = "e" } },
    },
  },
}
"#;
    let json = r#"{ "name": "small", "agents": { "e": { "operator": "echo" } }, "flow": { "kind": "try",
  "body": { "kind": "step", "agent": "e" },
  "catch": { "kind": "assign", "value": 1 } } }"#;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("branching.lua", lua);
    write("small.flow.json", json);
    write(
        "all_test.lua",
        "local t = require(\"swarm.test\")\nt.test(\"both\", function()\n \
         t.start(\"./branching.lua\", { n = 1 }):finish()\n \
         t.start(\"./branching.lua\", { n = 2 }):finish()\n \
         t.start(\"./small.flow.json\"):finish()\nend)",
    );
    let recorder = Recorder::default();
    let options = Options { coverage: Some(&recorder), ..PLAIN };
    let known = Declared::default().alone();
    let report = run(&dir.path().join("all_test.lua"), &known, &options, &Clock::manual(0));
    assert_eq!(report.tests[0].problem(), None);
    let files = recorder.take();
    let missed = |name: &str| {
        let file = files.iter().find(|it| it.path == dir.path().join(name)).expect("it ran");
        let missed = file.missed_nodes().map(|node| format!("{} {}", node.line, node.title));
        (file.nodes(), missed.collect::<Vec<_>>())
    };
    assert_eq!(missed("branching.lua"), ((5, 6), vec!["10 fail large".to_owned()]));
    assert_eq!(missed("small.flow.json"), ((2, 3), vec!["3 assign".to_owned()]));
    let hits = &files.iter().find(|it| it.path.ends_with("branching.lua")).unwrap().counts.nodes;
    let body = hits.iter().find(|(node, _)| node.at.ends_with("/body")).unwrap();
    assert_eq!(body.1, 6, "three rounds in each of two runs");
}

/// The findings of `moonswarm test` in a test that passes.
fn findings(body: &str) -> Vec<String> {
    let (_dir, report) = play(&format!("t.test(\"x\", function() {body} end)"), &PLAIN);
    assert_eq!(report.tests[0].problem(), None, "{body}");
    report.tests[0].findings.clone()
}

#[test]
fn a_test_that_shows_nothing_has_findings() {
    let start = "local run = t.start(\"review.lua\", { issue = \"x\" })";
    let found = findings(start);
    assert!(found[0].contains("asserts nothing"), "{found:?}");
    assert!(found[1].contains("\"review.lua\" never began"), "{found:?}");
    let found = findings(&format!("{start} run:mock(\"coder\", 1) run:advance(\"1h\") t.ok(true)"));
    assert_eq!(found, ["the run of \"review.lua\" was never finished: run:finish()"]);
    let looked = format!("{start} run:mock(\"coder\", 1) t.equal(run:status(), \"waiting\")");
    assert_eq!(findings(&looked), [""; 0]);
    assert_eq!(findings("if not t then assert(false) end"), [""; 0]);
}

#[test]
fn a_mock_for_nobody_is_a_finding_with_what_was_meant() {
    let found = findings(
        "local run = t.start(\"review.lua\", { issue = \"x\" }) run:mock(\"codr\", 1) \
         run:answer(\"ship\", { approved = true }) run:mock(\"coder\", t.failure {}) run:fails(\"worker\")",
    );
    assert_eq!(found, ["no blueprint of the test has the agent `codr`; did you mean `coder`?"]);
    let (_dir, report) = play("t.test(\"x\", function() end)", &PLAIN);
    assert!(lines(&report).iter().any(|line| line.contains("warning: the test asserts nothing")));
    assert!(summary(&[report]).0.contains("1 warning(s)"));
}

#[test]
fn a_failure_that_a_function_returns_or_raises_is_how_the_agent_failed() {
    let (_dir, report) = play(
        r#"
local function fails(answer)
  local run = t.start("review.lua", { issue = "x" })
  run:mock("coder", answer)
  return run:fails("worker")
end
t.test("returned", function()
  local err = fails(function(input) return t.failure { kind = "worker", message = "no " .. input.n, data = { code = 7 } } end)
  t.match(err.message, "no 1")
  t.equal(err.data, { code = 7 })
end)
t.test("raised", function()
  local err = fails(function() error(t.failure { kind = "worker", message = "gone" }) end)
  t.equal(err.message, "gone")
end)
t.test("tried again", function()
  local run, calls = t.start("review.lua", { issue = "x" }), 0
  run:mock("coder", function()
    calls += 1
    return if calls == 1 then t.failure { kind = "worker", retryable = true } else { diff = calls }
  end)
  run:mock("reviewer", { verdict = "pass" })
  run:answer("ship", { approved = true })
  run:finish()
  t.equal(calls, 4)
end)"#,
        &PLAIN,
    );
    let problems: Vec<_> = report.tests.iter().map(|test| test.problem()).collect();
    assert_eq!(problems, [None, None, None]);
}

#[test]
fn what_is_printed_shows_tables() {
    let (_dir, report) = play(
        "t.test(\"x\", function() print({ b = 2, a = { 1 } }, \"text\", {}, print) t.ok(true) end)",
        &PLAIN,
    );
    assert_eq!(report.tests[0].said, ["{\"a\":[1],\"b\":2}\ttext\t{}\tfunction"]);
}
