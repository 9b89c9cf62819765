//! The example that is shipped, over the real program.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::{
    client::{blueprint, open},
    support::{Daemon, Shell, repository, send},
};

/// A Python that has the library which the example needs: `MOONSWARM_PYTHON`, or the system's.
fn python() -> Option<String> {
    let python = std::env::var("MOONSWARM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import websockets"]).output();
    has.is_ok_and(|done| done.status.success()).then_some(python)
}

#[tokio::test]
async fn the_python_main_ai_works_on_a_run_and_ends_with_its_session() {
    let Some(python) = python() else {
        eprintln!("not run: there is no python3 with the library websockets");
        return;
    };
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let mut child = Command::new(python)
        .arg(repository("examples/main_ai.py"))
        .env("MOONSWARM_URL", &daemon.url)
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
    assert!(child.wait().unwrap().success(), "it ends with its session");
}
