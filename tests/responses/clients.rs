//! The official clients against a daemon. `scripts/test.sh` installs them below `target/clients/`;
//! a client that is not there is named, and not run.

use std::{path::PathBuf, process::Command};

use serde_json::json;

use crate::{
    model::desk,
    plain::{MIRROR, put},
    support::{Daemon, Shell, repository, skip},
};

async fn daemon(shell: &Shell) -> Daemon {
    let usage = json!({ "input": 10, "output": 4 });
    let turns = json!({ "helper": [
        { "when": "hello", "text": "Hello to you.", "usage": usage },
        { "when": "again", "text": "Hello again." },
        { "when": "picture", "text": "A pixel." },
        { "when": "weather?", "calls": [
            { "name": "weather", "arguments": { "town": "Lagos" } },
            { "name": "weather", "arguments": { "town": "Faro" } }] },
        { "when": "sun", "text": "Sunny in both." },
        { "when": "Write a summary", "text": "They greeted each other." },
    ] });
    let daemon = desk(shell, turns).await;
    put(&daemon, "mirror", MIRROR).await;
    daemon
}

/// The directory of the clients of others.
pub fn clients() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    target.join("clients")
}

async fn run(daemon: &Daemon, mut command: Command) {
    command.env("BASE_URL", format!("{}/v1", daemon.url)).env("API_KEY", &daemon.token);
    for proxy in
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
    {
        command.env_remove(proxy);
    }
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = run.await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

#[tokio::test]
async fn the_official_python_clients_are_served() {
    let python = clients().join("py/bin/python");
    if !python.exists() {
        skip("the official Python clients", &format!("{} is not there", python.display()));
        return;
    }
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    for script in ["client.py", "messages.py"] {
        let mut command = Command::new(&python);
        command.arg(repository("tests/responses/clients").join(script));
        run(&daemon, command).await;
    }
}

#[tokio::test]
async fn the_official_typescript_clients_are_served() {
    let scripts = ["client.js", "messages.js"].map(|name| clients().join("ts").join(name));
    if let Some(script) = scripts.iter().find(|script| !script.exists()) {
        skip("the official TypeScript clients", &format!("{} is not there", script.display()));
        return;
    }
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let node = std::env::var_os("MOONSWARM_NODEJS").unwrap_or_else(|| "node".into());
    for script in scripts {
        let mut command = Command::new(&node);
        command.arg(script);
        run(&daemon, command).await;
    }
}
