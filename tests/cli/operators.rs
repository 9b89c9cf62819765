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
