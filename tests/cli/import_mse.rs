//! Blueprints of mlua-swarm as blueprints in Lua: they check, and they run as they ran there.

use std::{fs, path::PathBuf, process::Command};

use serde_json::{Value, json};

use crate::support::{Shell, skip};

const CRATE: &str = "mlua-swarm-cli";
const VERSION: &str = "0.32.1";

/// The crate with the samples of mlua-swarm, as cargo fetches it into the directory of a test.
fn samples(shell: &Shell) -> Option<PathBuf> {
    let home = shell.path("cargo-home");
    fs::create_dir_all(&home).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let info = Command::new(cargo)
        .args(["info", &format!("{CRATE}@{VERSION}"), "--registry", "crates-io"])
        .current_dir(&home)
        .env("CARGO_HOME", &home)
        .env("CARGO_NET_RETRY", "1")
        .env("CARGO_HTTP_TIMEOUT", "20")
        .output();
    let why = match info {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(String::from_utf8_lossy(&done.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        let last = why.trim().lines().last().unwrap_or_default().to_owned();
        skip("the samples of mlua-swarm", &format!("cargo does not get the crate ({last})"));
        return None;
    }
    let sources = fs::read_dir(home.join("registry/src")).unwrap();
    let mut crates = sources.map(|it| it.unwrap().path().join(format!("{CRATE}-{VERSION}")));
    Some(crates.find(|it| it.is_dir()).expect("cargo has unpacked the crate"))
}

/// A test of each sample that was imported, with agents that are mocked.
const TESTS: &str = r#"local t = require("swarm.test")

local function all(run, values)
  for name, value in values do
    run:mock(name, value)
  end
  return run
end

t.test("01", function()
  t.match(t.start("sample-pure-ctx.lua"):finish(), { x = 10, verdict = "PASS" })
end)

t.test("02", function()
  local run = all(t.start("sample-verdict-loop.lua", { verdict = "BLOCKED" }), {
    ["mock-scout"] = "SCOUT_OK", ["mock-planner"] = "PLAN_OK", ["mock-resolver"] = "FIX_OK", ["mock-commit"] = "COMMITTED",
  })
  run:mock_sequence("mock-gate", { "BLOCKED", "PASS" })
  t.match(run:finish(), { n = 2, fix = "FIX_OK", verdict = "PASS", commit = "COMMITTED" })
  t.equal(run:inputs("mock-planner"), { "SCOUT_OK" })
end)

t.test("02 gives up", function()
  local run = all(t.start("sample-verdict-loop.lua", { verdict = "BLOCKED" }), {
    ["mock-scout"] = "SCOUT_OK", ["mock-planner"] = "PLAN_OK", ["mock-resolver"] = "FIX_OK", ["mock-gate"] = "BLOCKED",
    ["mock-escalate"] = "ESCALATED",
  })
  t.match(run:finish(), { n = 3, escalated = "ESCALATED" })
end)

t.test("02 needs its seed", function()
  local run = all(t.start("sample-verdict-loop.lua", {}), { ["mock-scout"] = "SCOUT_OK", ["mock-planner"] = "PLAN_OK" })
  t.match(run:fails("path_not_found"), { message = "no value at $.verdict" })
end)

t.test("03", function()
  local run = all(t.start("sample-fn-override.lua"), {
    ["mock-gate"] = "BLOCKED", ["mock-approver"] = "ALLOW", ["mock-commit"] = "COMMITTED",
  })
  t.match(run:finish(), { verdict = "BLOCKED", verdict_final = "ALLOW", commit = "COMMITTED" })
end)

t.test("04", function()
  local run = all(t.start("sample-after-run-audit-operator.lua"), { worker = "done", auditor = { verdict = "clean" } })
  t.match(run:finish(), { result = "done" })
  t.match(run:inputs("auditor")[1], { kind = "after_run_audit", step_ref = "worker", final_value = "done" })
end)

t.test("05: an audit that fails changes nothing", function()
  local run = t.start("sample-after-run-audit-agent-block.lua")
  run:mock("auditor", t.failure { kind = "worker", message = "away" })
  t.match(run:finish(), { result = "do the thing" })
  t.equal(run:count("auditor"), 1)
end)

t.test("11", function()
  local run = all(t.start("sample-subprocess-embed.lua"), {
    probe_worker = { result = { prompt_seen = "p" }, ok = true }, echo_worker = { result = "echoed" },
  })
  t.match(run:finish(), { probe = { prompt_seen = "p" }, echo = "echoed" })
end)

t.test("11: the program reports a failure", function()
  local run = all(t.start("sample-subprocess-embed.lua"), { probe_worker = { result = {}, ok = false } })
  run:fails("process")
end)

t.test("12", function()
  local run = t.start("sample-cli-staged-fanout.lua")
  run:mock_sequence("next-batch", { { batch = { "a", "b" } }, { batch = { "c" } }, { batch = {} } })
  run:mock("build", function(unit) return { built = unit } end)
  local out = run:finish()
  t.match(out, { finished = true, round = 3 })
  t.equal(out.last_stage[1].built, "c")
  t.equal(run:inputs("build"), { "a", "b", "c" })
end)
"#;

#[test]
fn the_samples_of_mlua_swarm_are_imported_checked_and_run() {
    let shell = Shell::new();
    let Some(from) = samples(&shell) else { return };
    let dir = from.join("src/mcp/resources/samples").display().to_string();
    let done = shell.run(&["import-mse", &dir, "--into", "bp", "--json"]).ok();
    let report = done.json();
    assert_eq!(report.as_array().unwrap().len(), 7, "{report:#}");
    let done = done.says(&["07-dsl-pipeline.bp.lua is a program that builds a blueprint"]);
    for one in report.as_array().unwrap() {
        let file = format!("bp/{}.lua", one["name"].as_str().unwrap());
        assert!(done.stderr.contains(&format!("wrote {file}")), "{done:?}");
        shell.run(&["check", &file]).ok().says(&["no findings"]);
    }
    shell.write("bp/samples_test.lua", TESTS);
    let done = shell.run(&["test", "bp", "--crash"]);
    assert_eq!(done.code, 0, "{}\n{}", done.stdout, done.stderr);
}

#[test]
fn the_programs_of_the_samples_print_what_they_printed_there() {
    let shell = Shell::new();
    let Some(from) = samples(&shell) else { return };
    for (sample, name, expected) in [
        (
            "11-subprocess-embed",
            "sample-subprocess-embed",
            json!({"echo": "echoed", "probe": {"prompt_seen": "summarize the change in one line",
                "system_seen": "You are a headless one-line summarizer."}}),
        ),
        ("12-cli-staged-fanout", "sample-cli-staged-fanout", json!({"finished": true, "round": 4})),
    ] {
        let path = from.join(format!("src/mcp/resources/samples/{sample}.json"));
        let path = path.display().to_string();
        shell.run(&["import-mse", &path, "--into", "bp", "--trust"]).ok();
        let file = format!("bp/{name}.lua");
        shell.run(&["check", &file]).ok().says(&["no findings"]);
        let out = shell.run(&["run", &file]).ok().json();
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(out[key], *value, "{sample}: {out:#}");
        }
    }
}

/// A document with one step after the other.
fn document(agents: &Value, steps: &Value) -> String {
    let operators = json!([{"name": "main_ai"}, {"name": "Reviewers"}]);
    let document = json!({"id": "moved", "flow": {"kind": "seq", "children": steps}, "agents": agents,
        "operators": operators, "default_init_ctx": {"topic": "rust"}});
    document.to_string()
}

#[test]
fn agents_of_files_keep_their_sub_agent_and_their_slots() {
    let shell = Shell::new();
    let file = "---\nname: researcher\ndescription: Looks: everywhere\nmodel: sonnet\neffort: high\n\
                tools: Read, Grep\nworker_binding: claude\nlints:\n  all: allow\n---\n\
                You research {{ directive }}.\n\nBe brief.\n";
    shell.write("in/agents/researcher.md", file);
    let agents =
        json!([{"$agent_md": "agents/researcher.md", "spec": {"operator_ref": "main_ai"}}]);
    let step = json!([{"kind": "step", "ref": "researcher", "in": {"op": "path", "at": "$.topic"},
        "out": {"op": "path", "at": "$.found"}}]);
    shell.write("in/moved.json", document(&agents, &step));
    let done = shell.run(&["import-mse", "in/moved.json"]).ok();
    let told = &done.stdout;
    for part in [
        "same: agents.researcher: a task of `main-ai`, for the sub-agent \"claude\"",
        "same: agents.researcher.profile.system_prompt: a template",
        "decide: operators[1]: declare the operator in moonswarm.toml: [operators.reviewers]",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    shell.run(&["check", "moved.lua"]).ok().says(&["no findings"]);
    let lua = fs::read_to_string(shell.path("moved.lua")).unwrap();
    assert!(lua.contains("subagent_type = \"claude\", tools = { \"Read\", \"Grep\" }"), "{lua}");
    shell.run(&["agents", "export", "moved.lua", "--into", "out"]).ok();
    let agent = fs::read_to_string(shell.path("out/researcher.md")).unwrap();
    for line in [
        "effort: \"high\"",
        "worker_binding: \"claude\"",
        "tools: [\"Read\",\"Grep\"]",
        "You research {{ directive }}.",
    ] {
        assert!(agent.contains(line), "{line}: {agent}");
    }
    // As an agent file alone, too.
    shell.run(&["agents", "import", "in/agents"]).ok();
    let list = fs::read_to_string(shell.path("agents.lua")).unwrap();
    assert!(
        list.contains("worker = { subagent_type = \"claude\", tools = { \"Read\", \"Grep\" } }"),
        "{list}"
    );
}

#[test]
fn nothing_is_written_over_and_nothing_at_all_after_an_error() {
    let shell = Shell::new();
    let step = |agent: &str| json!([{"kind": "step", "ref": agent, "in": {"op": "lit", "value": 1}, "out": {"op": "path", "at": "$.x"}}]);
    let agents = json!([{"name": "e", "kind": "rust_fn", "spec": {"fn_id": "identity"}}]);
    shell.write("in/a.json", document(&agents, &step("e")));
    shell.write("in/b.json", document(&agents, &step("nobody")));
    shell.write("in/other.json", "{}");
    shell.run(&["import-mse", "in", "--into", "out"]).exits(3).says(&[
        "in/b.json: failed to import flow.children[0].ref: there is no agent \"nobody\"",
        "in/other.json: no blueprint of mlua-swarm",
        "nothing was written",
    ]);
    assert!(!shell.path("out").exists());
    shell.run(&["import-mse", "in/a.json", "--dry-run"]).ok();
    assert!(!shell.path("moved.lua").exists());
    shell
        .run(&["import-mse", "in/a.json"])
        .ok()
        .says(&["wrote moved.lua: 1 to decide", "moonswarm check moved.lua"]);
    let out = shell.run(&["run", "moved.lua"]).ok().json();
    assert_eq!(out, json!({"topic": "rust", "x": 1}));
    shell.write("moved.lua", "-- mine");
    shell.run(&["import-mse", "in/a.json"]).exits(6).says(&["moved.lua is already there"]);
    shell.run(&["import-mse", "in/none.json"]).exits(4);
    shell.write("x.bp.lua", "return {}");
    shell.run(&["import-mse", "x.bp.lua"]).exits(3).says(&["mse bp build"]);
}

#[test]
fn all_nodes_and_expressions_compute_what_flow_ir_computes() {
    let shell = Shell::new();
    let path = |at: &str| json!({"op": "path", "at": at});
    let lit = |value: Value| json!({"op": "lit", "value": value});
    let set = |at: &str, value: Value| json!({"kind": "let", "at": at, "value": value});
    let two = |op: &str, lhs: Value, rhs: Value| json!({"op": op, "lhs": lhs, "rhs": rhs});
    let of = |op: &str, arg: Value| json!({"op": op, "arg": arg});
    let list = json!([1, 2, {"x": []}]);
    let mut steps = vec![set("$.n", lit(json!(7))), set("ctx.deep.list", lit(list.clone()))];
    let values = [
        ("eq", two("eq", path("$.n"), lit(json!(7.0))), json!(true)),
        ("ne", two("ne", path("$.deep.list"), lit(list.clone())), json!(false)),
        ("lt", two("lt", lit(json!("a")), lit(json!("b"))), json!(true)),
        ("gte", two("gte", path("$.n"), lit(json!(-7))), json!(true)),
        ("not", of("not", path("$.n")), json!(false)),
        ("not_null", of("not", lit(json!(null))), json!(true)),
        ("and", json!({"op": "and", "args": [path("$.n"), lit(json!(0))]}), json!(true)),
        ("or", json!({"op": "or", "args": []}), json!(false)),
        ("missing", of("exists", two("add", path("$.no.no"), lit(json!(1)))), json!(false)),
        ("exists", of("exists", path("$.deep.list")), json!(true)),
        ("sub", two("sub", path("$.n"), two("sub", lit(json!(1)), lit(json!(2)))), json!(8)),
        ("mul", two("mul", two("add", path("$.n"), lit(json!(1))), lit(json!(2))), json!(16)),
        ("div", two("div", path("$.n"), lit(json!(2))), json!(3.5)),
        ("mod", two("mod", lit(json!(-7)), lit(json!(3))), json!(2)),
        ("len", of("len", path("$.deep.list")), json!(3)),
        ("len_text", of("len", lit(json!("häß"))), json!(3)),
        ("len_object", of("len", lit(json!({"a": 1, "b": null}))), json!(2)),
        (
            "in",
            json!({"op": "in", "needle": lit(json!({"x": []})), "haystack": path("$.deep.list")}),
            json!(true),
        ),
    ];
    let mut expected = json!({"topic": "rust", "n": 7, "deep": {"list": list}});
    for (name, value, result) in values {
        steps.push(set(&format!("$.{name}"), value));
        expected[name] = result;
    }
    let fails = two("div", lit(json!(1)), path("$.zero"));
    let fan = |join: &str, body: Value| {
        json!({"kind": "fanout", "items": lit(json!([0, 2])), "bind": path("$.item"),
        "body": {"kind": "seq", "children": [set("$", json!({"op": "lit", "value": {}})), body]}, "join": join, "out": path(&format!("$.{join}"))})
    };
    let half = json!({"kind": "step", "ref": "e", "in": lit(json!("lane")), "out": path("$.r")});
    steps.extend([
        json!({"kind": "branch", "cond": path("$.eq"), "then": set("$.taken", lit(json!("then"))), "else": set("$.taken", lit(json!("else")))}),
        json!({"kind": "loop", "counter": path("$.i"), "cond": two("lt", path("$.i"), lit(json!(5))), "max": 3,
            "body": {"kind": "loop", "counter": path("$.j"), "cond": lit(json!(0)), "max": 2, "body":
                set("$.k", two("add", two("mul", path("$.i"), lit(json!(10))), path("$.j")))}}),
        json!({"kind": "try", "body": {"kind": "seq", "children": [set("$.lost", lit(json!(1))), set("$.x", fails.clone())]},
            "catch": set("$.caught", lit(json!(true))), "err_at": path("$.err")}),
        fan("all", half.clone()),
        fan("any", half.clone()),
        fan("race", half),
        fan("all_settled", set("$.x", fails)),
    ]);
    let agents = json!([{"name": "e", "kind": "rust_fn", "spec": {"fn_id": "identity"}}]);
    shell.write("moved.json", document(&agents, &steps.into()));
    shell.run(&["import-mse", "moved.json"]).ok();
    shell.run(&["check", "moved.lua"]).ok().says(&["no findings"]);
    let rejected = json!({"status": "rejected", "reason": "path_not_found: no value at $.zero"});
    let more = json!({"taken": "then", "i": 3, "j": 2, "k": 21, "caught": true, "err": "path_not_found: no value at $.zero",
        "all": [{"r": "lane"}, {"r": "lane"}], "any": {"r": "lane"}, "race": {"r": "lane"}, "all_settled": [rejected, rejected]});
    expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(shell.run(&["run", "moved.lua"]).ok().json(), expected);
}
