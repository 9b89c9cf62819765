//! Operators from the configuration, as `check`, `doctor` and a run see them.

use crate::support::{
    Shell,
    provider::{Answer, Provider},
};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "b",
  agents = { a = { operator = "again" } },
  flow = function(ctx, input) return ctx:run("a", input) end }"#;

#[test]
fn a_configured_operator_is_known_to_check_and_run() {
    let shell = Shell::new();
    shell.write("b.lua", FLOW);
    let unknown = shell.run(&["check", "b.lua", "--json"]).exits(3).json();
    assert_eq!(unknown[0]["code"], "MS-B020");
    assert!(unknown[0]["hint"].as_str().unwrap().contains("there are: echo, human, lua"));

    shell.write("moonswarm.toml", "[operators.again]\nkind = \"echo\"\n");

    shell.run(&["check", "b.lua"]).ok();
    let ran = shell.run(&["run", "b.lua", "-i", "{\"x\":1}", "--json"]).ok().json();
    assert_eq!(ran["output"]["x"], 1);
}

#[test]
fn an_agent_of_an_mcp_server_names_its_tool_or_its_operator_does() {
    let shell = Shell::new();
    shell.write("b.lua", FLOW);
    let server = "[operators.again]\nkind = \"mcp\"\ncommand = [\"server\"]\n";
    shell.write("moonswarm.toml", server);
    let found = shell.run(&["check", "b.lua", "--json"]).exits(3).json();
    assert_eq!(found[0]["code"], "MS-B026");
    shell.write("moonswarm.toml", format!("{server}tool = \"add\"\n"));
    shell.run(&["check", "b.lua"]).ok();
}

#[test]
fn a_scripted_model_answers_without_a_key_and_is_shown_while_it_does() {
    let shell = Shell::new();
    let fifo = shell.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    shell.write("turns.json", r#"["It is a\nscripted answer."]"#);
    shell.write(
        "moonswarm.toml",
        "[operators.again]\nkind = \"llm\"\napi = \"script\"\nturns = \"turns.json\"\n",
    );
    shell.write(
        "b.lua",
        r#"local swarm = require("swarm")
return swarm.blueprint { name = "b",
  agents = { a = { operator = "again", prompt = "Answer." },
    gate = { operator = "process", command = { "cat", "fifo" }, check = false } },
  flow = function(ctx)
    ctx:log("info", "watching")
    ctx:run("gate")
    ctx:run("a", { items = swarm.array {} })
    return "over"
  end }"#,
    );
    shell.run(&["check", "b.lua"]).ok();
    let mut run = shell.start(&["run", "b.lua"]);
    // What is logged is heard over the events: from here on nothing is missed.
    run.until("info: watching");
    std::fs::write(&fifo, "").unwrap();
    run.until("a: It is a");
    run.until("a: scripted answer.");
    run.end().ok();
    let doctor = shell.run(&["doctor"]).stdout;
    assert!(doctor.contains("again (llm) answers with the 1 turns of turns.json"), "{doctor}");
    let listed = shell.run(&["operators"]).ok().stdout;
    assert!(listed.contains("llm"), "{listed}");
}

#[test]
fn doctor_says_whether_a_provider_answers_and_takes_the_key() {
    let provider = Provider::start(|_, asked| {
        assert_eq!(asked.path, "/v1/models");
        match asked.head.contains("bearer good") {
            true => Answer::document("200 OK", "", "{\"data\":[]}"),
            false => Answer::document("401 Unauthorized", "", "{}"),
        }
    });
    let shell = Shell::new();
    let declare = |name: &str, url: &str| {
        format!(
            "[operators.{name}]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"m-1\"\n\
             base_url = {url:?}\nallow_hosts = [\"127.0.0.1\"]\nkey = {{ file = \"{name}\" }}\n"
        )
    };
    let config = [
        declare("good", &provider.base_url),
        "[operators.good.prices.\"m-1\"]\ninput = \"1\"\noutput = \"2\"\n".to_owned(),
        declare("bad", &provider.base_url),
        declare("gone", "http://127.0.0.1:9/v1"),
    ];
    shell.write("moonswarm.toml", config.concat());
    for name in ["good", "bad", "gone"] {
        shell.write(name, name);
    }
    let doctor = shell.run(&["doctor"]).stdout;
    for part in [
        "good (llm) asks m-1 at 127.0.0.1, which answers; its key is there; with the prices of 1 model",
        "bad (llm): 127.0.0.1 refuses its key (401 Unauthorized)",
        "gone (llm): failed to reach the model",
    ] {
        assert!(doctor.contains(part), "{part}: {doctor}");
    }
}

#[test]
fn a_composite_falls_back_and_its_members_are_shown_below_it() {
    let shell = Shell::new();
    shell.write(
        "moonswarm.toml",
        "[operators.away]\nkind = \"http\"\nurl = \"http://127.0.0.1:9/\"\nallow_private = true\n\
         [operators.again]\nkind = \"composite\"\nrule = \"fallback\"\nmembers = [\"away\", \"process\"]\n",
    );
    let needs = shell.write("b.lua", FLOW);
    let found = shell.run(&["check", "b.lua", "--json"]).exits(3).json();
    assert_eq!(found[0]["code"], "MS-B022", "a member is a process");
    let flow = FLOW.replace("\"again\"", "\"again\", command = { \"echo\", \"7\" }");
    std::fs::write(needs, flow).unwrap();
    shell.run(&["check", "b.lua"]).ok();

    let ran = shell.run(&["run", "b.lua", "--json"]).ok().json();

    assert_eq!(ran["output"], 7);
    let shown = shell.run(&["show", "last"]).ok().stdout;
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.contains(" ✓ a")).expect("the composite");
    assert!(lines[at + 2].contains(" ✗ a by away"), "{shown}");
    assert!(lines[at + 3].contains(" ✓ a by process"), "{shown}");
    let listed = shell.run(&["operators"]).ok().stdout;
    assert!(listed.contains("fallback of away, process"), "{listed}");
    let doctor = shell.run(&["doctor"]).stdout;
    assert!(doctor.contains("again (composite) is a fallback of away, process"), "{doctor}");
}

#[test]
fn composites_that_cannot_be_are_refused_with_their_place() {
    let shell = Shell::new();
    let declare = |keys: &str| format!("[operators.x]\nkind = \"composite\"\n{keys}\n");
    for (keys, why) in [
        ("rule = \"race\"\nmembers = [\"lua\", \"nobody\"]", "its member `nobody` is no operator"),
        ("rule = \"race\"\nmembers = [\"x\"]", "it is a member of itself: x > x"),
        ("rule = \"quorum\"\nmembers = [\"lua\"]\nagree = 2", "2 of 1 members cannot agree"),
    ] {
        shell.write("moonswarm.toml", declare(keys));
        for verb in [&["doctor"][..], &["check", "b.lua"]] {
            shell.run(verb).exits(2).says(&["moonswarm.toml:1:", &format!("operator `x`: {why}")]);
        }
    }
}

#[test]
fn a_quorum_compares_what_the_agent_says() {
    let shell = Shell::new();
    let config = "[operators.again]\nkind = \"composite\"\nrule = \"quorum\"\nagree = 2\n\
                  path = \"verdict\"\nmembers = [\"echo\", \"echo\", \"echo\"]\n";
    shell.write("moonswarm.toml", config);
    let with = |name: &str| {
        let schema =
            format!("\"again\", output = swarm.schema.object {{ {name} = swarm.schema.integer }}");
        FLOW.replace("\"again\"", &schema)
    };
    shell.write("b.lua", with("verdit"));
    let found = shell.run(&["check", "b.lua", "--json"]).exits(3).json();
    assert_eq!(found[0]["code"], "MS-B029");
    shell.write("b.lua", with("verdict"));
    let ran = shell.run(&["run", "b.lua", "-i", "{\"verdict\":3}", "--json"]).ok().json();
    assert_eq!(ran["output"]["verdict"], 3);
}

#[test]
fn a_used_up_budget_ends_with_its_own_code() {
    let shell = Shell::new();
    let source = FLOW.replace(
        "\"again\"",
        "\"process\", command = { \"echo\", \"1\" }, budget = { usd = \"0\" }",
    );
    shell.write("b.lua", source);
    let ran = shell.run(&["run", "b.lua"]).exits(10);
    assert!(ran.stderr.contains("the budget of agent a is used up"), "{}", ran.stderr);
}

#[test]
fn a_mistake_in_the_file_is_placed_and_explained() {
    let shell = Shell::new();
    shell.write("moonswarm.toml", "shards = 1\n\n[operators.ci]\nkind = \"http\"\nurk = \"x\"\n");
    shell
        .run(&["ps"])
        .exits(2)
        .says(&["moonswarm.toml:5:1: operator `ci`: unknown key `urk`; did you mean `url`?"]);
}

#[test]
fn doctor_lists_each_operator_and_whether_it_can_be_used() {
    let shell = Shell::new();
    shell.write(
        "moonswarm.toml",
        "[operators.inside]\nkind = \"http\"\nurl = \"https://localhost/\"\n\
         [operators.tools]\nkind = \"mcp\"\ncommand = [\"/nonexistent/mcp\"]\n\
         [operators.process]\nkind = \"process\"\nenv = { T = { env = \"MOONSWARM_NOT_SET\" } }\n",
    );
    let done = shell.run(&["doctor"]).exits(1);
    for part in [
        "ok    operator: echo (echo) is built in",
        "fail  operator: inside (http): failed to reach localhost",
        "fail  operator: tools (mcp): failed to start the MCP server `/nonexistent/mcp`",
        "fail  operator: process (process): failed to read the environment variable MOONSWARM_NOT_SET",
        "next: see [operators.inside]",
    ] {
        assert!(done.stdout.contains(part), "{part:?} is not in: {}", done.stdout);
    }
}

#[test]
fn a_step_says_how_long_it_waited_and_how_long_it_ran() {
    let shell = Shell::new();
    shell.write(
        "slow.lua",
        r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "slow",
  edition = 2,
  agents = {
    nap = { operator = "process", command = { "sleep", "0.3" }, max_concurrency = 1 },
    sum = { operator = "lua", fn = function(input) return input.a + 1 end },
    said = { operator = "echo" },
  },
  flow = function(ctx)
    ctx:map({ 1, 2, 3 }, function() return ctx:run("nap") end)
    ctx:run("said")
    return ctx:run("sum", { a = 1 })
  end,
}
"#,
    );
    let run = shell.run(&["run", "slow.lua", "--json"]).ok().json();
    let id = run["id"].as_str().unwrap();
    let shown = shell.run(&["show", id, "--json"]).ok().json();
    let steps = shown["steps"].as_array().unwrap();
    let number = |step: &serde_json::Value, key: &str| step[key].as_u64().unwrap_or_default();
    let naps: Vec<_> = steps.iter().filter(|step| step["name"] == "nap").collect();
    assert_eq!(naps.len(), 3);
    for nap in &naps {
        assert!(number(nap, "ran_ms") >= 290, "{nap}");
        let parts = number(nap, "queued_ms") + number(nap, "ran_ms");
        assert_eq!(parts, number(nap, "duration_ms"), "{nap}");
    }
    assert!(naps.iter().any(|nap| number(nap, "queued_ms") >= 580), "{naps:#?}");
    let sum = steps.iter().find(|step| step["name"] == "sum").unwrap();
    assert!(!sum["ran_ms"].is_null(), "{sum}");
    let echo = steps.iter().find(|step| step["name"] == "said").unwrap();
    assert_eq!((number(echo, "queued_ms"), &echo["ran_ms"]), (0, &0.into()), "{echo}");
    let text = shell.run(&["show", id]).ok().stdout;
    assert!(text.contains("waiting)"), "{text}");
}
