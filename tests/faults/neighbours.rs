//! Other programs in the data directory, and rows that nobody can read.

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, needs_sqlite, send, when};

const WAITS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "waits", agents = { echo = { operator = "echo" } },
  flow = function(ctx)
    ctx:sleep("300ms")
    return ctx:run("echo", { got = ctx:wait("go") })
  end,
}
"#;

async fn until(daemon: &Daemon, path: &str, status: &str) -> Value {
    eventually(&format!("{status} of {path}"), async || {
        let (_, seen) = send(daemon.get(path)).await;
        when(seen["status"] == *status, format!("{seen}\n{}", daemon.log())).map(|()| seen)
    })
    .await
}

/// Waits until it takes no work, and says why.
async fn unready(daemon: &Daemon) -> String {
    eventually("a daemon that takes no work", async || {
        let (status, seen) = send(daemon.get("/readyz")).await;
        let detail = || seen["detail"].as_str().unwrap().to_owned();
        when(status == 503, format!("{seen}\n{}", daemon.log())).map(|()| detail())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_program_locks_is_waited_for() {
    if needs_sqlite("other programs at the file of the database") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = daemon.run_source(WAITS, json!({})).await;
    let other = Connection::open(data.join("moonswarm.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mint = daemon.post("/v1/tokens", &json!({ "role": "observer", "ttl": "1h" }));
    let minting = tokio::spawn(send(mint));
    let waiting = unready(&daemon).await;
    assert!(waiting.contains("locked"), "{waiting}");
    assert!(!minting.is_finished(), "it is waited for");
    let (status, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!(status, 200, "what is stored can be read meanwhile: {view}");
    other.execute_batch("ROLLBACK").unwrap();
    let (status, minted) = minting.await.unwrap();
    assert_eq!(status, 201, "{minted}");
    until(&daemon, "/readyz", "ready").await;
    until(&daemon, &format!("/v1/runs/{run}"), "waiting").await;
    let signal = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1));
    assert_eq!(send(signal).await.0, 204);
    assert_eq!(daemon.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn a_run_that_cannot_be_read_rests_with_its_bytes_and_all_others_go_on() {
    if needs_sqlite("other programs at the file of the database") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(daemon.run_source(WAITS, json!({})).await);
    }
    daemon.kill();
    let db = Connection::open(data.join("moonswarm.db")).unwrap();
    let read = || -> (i64, Vec<u8>) {
        let sql = "SELECT lsn, entry FROM journal WHERE run = 2 ORDER BY lsn DESC LIMIT 1";
        db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let (lsn, sound) = read();
    let write = |bytes: &[u8]| {
        db.execute("UPDATE journal SET entry = ?2 WHERE lsn = ?1", params![lsn, bytes]).unwrap();
    };
    let poison = [0x01, 0xff, 0x00, 0x7f];
    write(&poison);

    let daemon = Daemon::start(&data);
    let path = |n: usize| format!("/v1/runs/{}", runs[n]);
    let rests = until(&daemon, &path(1), "paused").await;
    let reason = rests["error"]["message"].as_str().unwrap();
    assert!(reason.contains("cannot be read") && reason.contains("journal of run 2"), "{rests}");
    for n in [0, 2] {
        until(&daemon, &path(n), "waiting").await;
        let signal = daemon.post(&format!("{}/signals/go", path(n)), &json!(1));
        assert_eq!(send(signal).await.0, 204);
        assert_eq!(daemon.ended(&runs[n]).await["status"], "completed");
    }
    let shown = shell.run(&["show", &runs[1], "--data", data.to_str().unwrap()]);
    let text = format!("{}{}", shown.stdout, shown.stderr);
    assert!(text.contains("paused") && text.contains("cannot be read"), "{text}");
    let (status, problem) = send(daemon.post(&format!("{}/resume", path(1)), &json!({}))).await;
    assert_eq!((status, &problem["code"]), (500, &json!("damaged")), "{problem}");
    assert_eq!(read().1, poison, "its bytes are kept");

    write(&sound);
    let (status, resumed) = send(daemon.post(&format!("{}/resume", path(1)), &json!({}))).await;
    assert_eq!(status, 200, "{resumed}");
    until(&daemon, &path(1), "waiting").await;
    let signal = daemon.post(&format!("{}/signals/go", path(1)), &json!(1));
    assert_eq!(send(signal).await.0, 204);
    assert_eq!(daemon.ended(&runs[1]).await["status"], "completed");
}
