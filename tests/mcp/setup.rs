//! The set-up of clients: written, used, and taken back.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::{
    client::Agent,
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

    run(&["mcp", "uninstall", "--client", "claude-code", "--yes"]);
    let text = std::fs::read_to_string(here.join(".mcp.json")).unwrap();
    let left: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(left, json!({"mcpServers": {"other": {"command": "x"}}}));
    assert!(!std::path::Path::new(file).exists());
    let gone = daemon.with(token.trim(), reqwest::Method::GET, "/v1/whoami");
    assert_eq!(send(gone).await.1["code"], "token_revoked");
}
