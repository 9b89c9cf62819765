//! The examples that are shipped, over the real program, with every message they exchange checked.

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    client::{Opened, blueprint, open},
    support::{Daemon, Shell, repository, send, skip},
    tap::Tap,
};

/// A Python that has the library which the example needs: `MOONSWARM_PYTHON`, or the system's.
fn python() -> Option<String> {
    let python = std::env::var("MOONSWARM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import websockets"]).output();
    has.is_ok_and(|done| done.status.success()).then_some(python)
}

/// A Node that runs TypeScript and has a WebSocket: `MOONSWARM_NODEJS`, or the system's.
fn node() -> Option<String> {
    let node = std::env::var("MOONSWARM_NODEJS").unwrap_or_else(|_| "node".to_owned());
    let has = "process.exit(process.features.typescript && globalThis.WebSocket ? 0 : 1)";
    let done = Command::new(&node).args(["-e", has]).output();
    done.is_ok_and(|done| done.status.success()).then_some(node)
}

/// A daemon that may be reached through a tap: under any port of its address.
fn tapped(shell: &Shell) -> Daemon {
    let config = shell.write("tapped.toml", "hosts = [\"127.0.0.1\"]\n");
    Daemon::start_with(&shell.path("data"), &[OsStr::new("--config"), config.as_os_str()])
}

/// Lets an example work on five tasks at once, and end with its session.
async fn works(mut example: Command) {
    let shell = Shell::new();
    let daemon = tapped(&shell);
    let tap = Tap::of(&daemon.url).await;
    let session: Opened = open(&daemon).await;
    let mut child = example
        .env("MOONSWARM_URL", &tap.url)
        .env("MOONSWARM_SESSION", &session.id)
        .env("MOONSWARM_SESSION_TOKEN", &session.token)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let source = blueprint(
        r#"return ctx:map({ 1, 2, 3, 4, 5 }, function(n)
             return ctx:run("writer", { what = "part " .. n })
           end)"#,
    );
    let run = daemon.run_source(&source, json!({})).await;
    let view = daemon.ended(&run).await;
    let expected = json!({"agent": "writer", "answer": "Write part 5."});
    assert_eq!(view["output"][4], expected, "{view}");
    assert_eq!(send(daemon.delete(&format!("/v1/sessions/{}", session.id))).await.0, 204);
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(ended.success(), "it ends with its session");

    let heard = tap.heard();
    let calls = |method: &str| heard.calls.iter().filter(|it| it["method"] == method).count();
    let frames = |method: &str| heard.frames.iter().filter(|it| it["method"] == method).count();
    assert_eq!((frames("hello"), frames("task/spawn"), frames("session/close")), (1, 5, 1));
    assert_eq!((calls("tasks/list"), calls("ack")), (1, 5));
}

#[tokio::test]
async fn the_python_main_ai_works_on_a_run_and_ends_with_its_session() {
    let Some(python) = python() else {
        skip("examples/main_ai.py", "there is no python3 with the library websockets");
        return;
    };
    let mut example = Command::new(python);
    example.arg(repository("examples/main_ai.py"));
    works(example).await;
}

#[tokio::test]
async fn the_typescript_main_ai_works_on_a_run_and_ends_with_its_session() {
    let Some(node) = node() else {
        skip("examples/main_ai.ts", "there is no node that runs TypeScript (22.18 or newer)");
        return;
    };
    let mut example = Command::new(node);
    example.arg(repository("examples/main_ai.ts"));
    works(example).await;
}
