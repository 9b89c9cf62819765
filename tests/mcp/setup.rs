//! The set-up of clients: written, used, and taken back.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::{
    client::{Agent, mint},
    support::{Daemon, Shell, program, send},
};

#[tokio::test]
async fn a_client_is_set_up_with_a_narrow_token_and_the_set_up_is_taken_back() {
    let shell = Shell::new();
    let (data, home) = (shell.path("data"), shell.path("home"));
    let daemon = Daemon::start(&data);
    let here = shell.path("project");
    std::fs::create_dir(&here).unwrap();
    let run = |words: &[&str]| {
        let mut command = program();
        command.args(words).arg("--data").arg(&data).current_dir(&here);
        command.env("HOME", &home).env_remove("XDG_CONFIG_HOME");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stderr).unwrap()
    };
    let install = ["mcp", "install", "--client", "claude-code"];
    let shown = run(&install);
    assert!(shown.contains("mcpServers") && shown.contains("nothing is written"), "{shown}");
    assert!(!here.join(".mcp.json").exists() && !home.exists(), "it only shows");

    std::fs::write(here.join(".mcp.json"), r#"{"mcpServers": {"other": {"command": "x"}}}"#)
        .unwrap();
    run(&[&install[..], &["--yes"]].concat());
    let text = std::fs::read_to_string(here.join(".mcp.json")).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["mcpServers"]["other"], json!({"command": "x"}));
    let entry = &written["mcpServers"]["moonswarm"];
    assert_eq!(entry["args"], json!(["mcp"]));
    let file = entry["env"]["MOONSWARM_TOKEN_FILE"].as_str().unwrap();
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = std::fs::read_to_string(file).unwrap();
    assert!(!text.contains(token.trim()), "no token stands in a file of the project");

    // As the client starts it: with the environment of its entry.
    let agent = Agent::stdio(&data, &[("MOONSWARM_TOKEN_FILE", file)]).await;
    let who = agent.ok("doctor", json!({})).await["you"].clone();
    assert_eq!(who["role"], "operator");
    let verbs = who["verbs"].to_string();
    assert!(!verbs.contains("run.source") && !verbs.contains("task.answer"), "{verbs}");
    agent.close().await;

    let doctor = |words: &[&str]| {
        let mut command = program();
        command.args(words).arg("--data").arg(&data).current_dir(&here).env("HOME", &home);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let checked = doctor(&["doctor"]);
    assert!(
        checked.contains("ok    coding agent: ./.mcp.json: its token is valid until 2"),
        "{checked}"
    );
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let checked = doctor(&["doctor"]);
    assert!(checked.contains("fail  coding agent: ./.mcp.json: others can read"), "{checked}");
    let again = "next: moonswarm mcp install --client claude-code --scope project";
    assert!(checked.contains(again), "{checked}");

    // A file that has nothing else is removed.
    run(&["mcp", "install", "--client", "codex", "--yes"]);
    assert!(here.join(".codex/config.toml").exists());
    run(&["mcp", "uninstall", "--client", "codex", "--yes"]);
    assert!(!here.join(".codex/config.toml").exists());
    run(&["mcp", "uninstall", "--client", "claude-code", "--yes"]);
    let text = std::fs::read_to_string(here.join(".mcp.json")).unwrap();
    let left: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(left, json!({"mcpServers": {"other": {"command": "x"}}}));
    assert!(!std::path::Path::new(file).exists());
    let gone = daemon.with(token.trim(), reqwest::Method::GET, "/v1/whoami");
    assert_eq!(send(gone).await.1["code"], "token_revoked");
}

#[tokio::test]
async fn a_host_of_its_own_gives_a_client_no_more_than_its_token() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = mint(&daemon, json!({"role": "observer", "name": "eye", "ttl": "1h"})).await;
    assert_eq!(daemon.stop(), Some(0));
    let agent = Agent::stdio(&data, &[("MOONSWARM_TOKEN", token.as_str())]).await;
    let who = agent.ok("doctor", json!({})).await["you"].clone();
    assert_eq!((&who["subject"], &who["role"]), (&json!("eye"), &json!("observer")));
    assert!(!agent.names().await.contains(&"start_run".to_owned()));
    let (said, code) = agent.close().await;
    assert_eq!((said.contains("a host runs here"), code), (true, Some(0)), "{said}");
    // The same for every command that opens the directory itself.
    let mut command = program();
    command.args(["state", "set", "a", "1", "--data"]).arg(&data).env("MOONSWARM_TOKEN", &token);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("may not"), "{said}");
}

#[test]
fn the_skill_is_written_where_agents_look_for_it_and_taken_back() {
    let shell = Shell::new();
    let here = shell.path("project");
    std::fs::create_dir(&here).unwrap();
    std::fs::write(here.join("AGENTS.md"), "# Rules\n\nBe kind.\n").unwrap();
    let run = |words: &[&str]| {
        let done = program().args(words).current_dir(&here).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    let skill = here.join(".claude/skills/moonswarm/SKILL.md");
    let (code, shown) = run(&["skills", "install"]);
    assert!(
        code == 0 && shown.contains("write AGENTS.md") && shown.contains("nothing is written"),
        "{shown}"
    );
    assert!(!skill.exists(), "it only shows");
    assert_eq!(run(&["skills", "install", "--yes"]).0, 0);
    assert_eq!(run(&["skills", "install", "--yes"]).0, 0, "twice is once");
    let text = std::fs::read_to_string(&skill).unwrap();
    assert!(text.contains("| `ctx:run` |") && text.contains("Lua here is Luau"), "{text}");
    let rules = std::fs::read_to_string(here.join("AGENTS.md")).unwrap();
    assert!(rules.starts_with("# Rules") && rules.matches("## moonswarm").count() == 1, "{rules}");

    // The blueprint that it shows is one that runs.
    let source = text.split("```lua\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(here.join("shown.lua"), source).unwrap();
    assert_eq!(run(&["check", "shown.lua"]).0, 0);

    assert_eq!(run(&["skills", "uninstall", "--yes"]).0, 0);
    assert!(!skill.exists() && !skill.parent().unwrap().exists());
    let rules = std::fs::read_to_string(here.join("AGENTS.md")).unwrap();
    assert_eq!(rules, "# Rules\n\nBe kind.\n");
    assert_eq!(run(&["skills", "uninstall", "--yes"]).0, 4, "there is nothing to take back");
}
