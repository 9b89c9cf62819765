//! Operators from the configuration, as `check`, `doctor` and a run see them.

use crate::support::Shell;

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
    let at = lines.iter().position(|line| line.starts_with("✓ a")).expect("the composite");
    assert!(lines[at + 1].starts_with("✗ a by away"), "{shown}");
    assert!(lines[at + 2].starts_with("✓ a by process"), "{shown}");
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
    assert_eq!(found[0]["code"], "MS-B027");
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
