//! Coming back: after a cut, to another socket, after a restart, without a memory.

use serde_json::{Value, json};

use crate::{
    client::{Socket, blueprint, open},
    support::{Daemon, Shell, send},
};

/// Three tasks at once.
const THREE: &str = r#"local all = ctx:map({ 1, 2, 3 }, function(i) return ctx:run("coder", { n = i }) end)
    return all"#;

async fn spawns(socket: &mut Socket, count: usize) -> Vec<Value> {
    let mut seen = Vec::new();
    for _ in 0..count {
        seen.push(socket.until("task/spawn").await);
    }
    seen
}

async fn finish(socket: &mut Socket, spawns: &[Value]) {
    for spawn in spawns {
        let task = &spawn["params"]["task"];
        socket.ask("task/result", json!({"task": task, "output": spawn["seq"]})).await;
    }
}

#[tokio::test]
async fn a_reconnect_gets_exactly_what_it_missed() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(THREE), json!({})).await;
    let mut socket = session.connect(&daemon).await;
    let all = spawns(&mut socket, 3).await;
    socket.drop_dead();

    let mut socket = session.try_connect(&daemon, Some(1)).await.unwrap();
    let missed = spawns(&mut socket, 2).await;
    assert_eq!(missed, all[1..], "the same frames, the same handles");
    socket.drop_dead();
    let mut socket = session.connect(&daemon).await;
    let unacked = spawns(&mut socket, 2).await;
    assert_eq!(unacked[0]["seq"], 2, "what was named as seen is acknowledged");
    finish(&mut socket, &all).await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");

    let ahead = session.try_connect(&daemon, Some(99)).await.err().unwrap();
    assert_eq!(ahead, (409, "seq_ahead".to_owned()));
    assert_eq!(socket.refused("ack", json!({"seq": 99})).await, "seq_ahead");
}

#[tokio::test]
async fn the_newest_socket_wins_and_the_older_is_told_why() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut old = session.connect(&daemon).await;
    let mut new = session.connect(&daemon).await;
    let goodbye = old.until("session/close").await;
    assert_eq!(goodbye["params"]["code"], 4000, "{goodbye}");
    assert_eq!(old.end().await.0, 4000);
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    let spawn = new.until("task/spawn").await;
    finish(&mut new, &[spawn]).await;
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

#[tokio::test]
async fn a_killed_daemon_forgets_neither_sessions_nor_frames_nor_tasks() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(THREE), json!({})).await;
    let mut socket = session.connect(&daemon).await;
    let all = spawns(&mut socket, 3).await;
    socket.ask("ack", json!({"seq": 1})).await;
    daemon.kill();

    let daemon = Daemon::start(&data);
    let mut socket = session.try_connect(&daemon, Some(1)).await.unwrap();
    let again = spawns(&mut socket, 2).await;
    assert_eq!(again, all[1..], "numbers and handles are as good as before");
    let list = socket.ask("tasks/list", json!({})).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 3, "{list}");
    finish(&mut socket, &all).await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn a_stopped_daemon_says_goodbye_and_the_session_goes_on_at_the_next() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    let spawn = socket.until("task/spawn").await;
    let stopped = tokio::task::spawn_blocking(move || daemon.stop());
    assert_eq!(socket.until("session/close").await["params"]["code"], 1001);
    assert_eq!(socket.end().await.0, 1001);
    assert_eq!(stopped.await.unwrap(), Some(0));

    let daemon = Daemon::start(&data);
    let mut socket = session.try_connect(&daemon, Some(1)).await.unwrap();
    finish(&mut socket, &[spawn]).await;
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

#[tokio::test]
async fn a_report_is_repeated_over_the_socket_after_a_restart_whoever_made_it() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let (session, other) = (open(&daemon).await, open(&daemon).await);
    let body = blueprint(r#"return ctx:run("coder", {})"#);
    let body = json!({"source": body, "input": {}, "seats": {"main-ai": session.id}});
    let mut socket = session.connect(&daemon).await;
    let mut ended = Vec::new();
    for by_handle in [false, true] {
        let (status, run) = send(daemon.post("/v1/runs", &body)).await;
        assert_eq!(status, 201, "{run}");
        let spawn = socket.until("task/spawn").await;
        let report = json!({"task": spawn["params"]["task"], "output": 7});
        if by_handle {
            let handle = spawn["params"]["handle"].as_str().unwrap();
            let same = daemon.with(handle, reqwest::Method::POST, "/v1/worker/result");
            assert_eq!(send(same.json(&json!({"output": 7}))).await.0, 200);
        } else {
            assert_eq!(socket.ask("task/result", report.clone()).await["repeated"], false);
        }
        assert_eq!(daemon.ended(run["id"].as_str().unwrap()).await["output"], 7);
        socket.ask("ack", json!({"seq": spawn["seq"]})).await;
        ended.push(report);
    }
    daemon.kill();

    let daemon = Daemon::start(&data);
    let mut socket = session.connect(&daemon).await;
    assert_eq!(socket.ask("task/result", ended[0].clone()).await["repeated"], true);
    // The bodies differ, and the attempt is known to be this session's.
    let code = |answer: Value| answer["error"]["data"]["code"].clone();
    let late = socket.try_call("task/result", ended[1].clone()).await.unwrap();
    assert_eq!(code(late), "already_accepted");
    let mut foreign = other.connect(&daemon).await;
    let refused = foreign.try_call("task/result", ended[0].clone()).await.unwrap();
    assert_eq!(code(refused), "foreign_task");
}

#[tokio::test]
async fn a_main_ai_that_forgot_everything_lists_its_tasks_and_finishes_them() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(THREE), json!({})).await;
    let mut socket = session.connect(&daemon).await;
    let mut all = spawns(&mut socket, 3).await;
    // Frames come as tasks pass their layers; the list is in the order of the tasks.
    all.sort_by_key(|spawn| spawn["params"]["task"].as_str().unwrap().to_owned());
    socket.ask("ack", json!({"seq": 3})).await;
    socket.drop_dead();

    let mut socket = session.connect(&daemon).await;
    let list = socket.ask("tasks/list", json!({})).await;
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 3, "{list}");
    for (item, spawn) in items.iter().zip(&all) {
        assert_eq!(
            (&item["id"], &item["handle"]),
            (&spawn["params"]["task"], &spawn["params"]["handle"])
        );
        assert_eq!((&item["state"], &item["system"]), (&json!("processing"), &json!("You code.")));
        assert_eq!(item["worker"]["subagent_type"], "coder");
        let done = json!({"output": item["input"]});
        let handle = item["handle"].as_str().unwrap();
        let report = daemon.with(handle, reqwest::Method::POST, "/v1/worker/result").json(&done);
        assert_eq!(send(report).await.0, 200);
    }
    let view = daemon.ended(&run).await;
    assert_eq!(view["output"], json!([{"n": 1}, {"n": 2}, {"n": 3}]), "{view}");
    assert_eq!(socket.ask("tasks/list", json!({})).await["items"], json!([]));
}

#[tokio::test]
async fn a_run_that_waits_for_a_session_says_so_and_goes_on_when_one_opens() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    let on = &view["waiting_on"][0];
    assert_eq!(on["subject"]["session"]["state"], "none", "{view}");
    assert!(on["until"].is_string(), "it has a deadline: {view}");
    daemon.kill();
    // Also over a restart: nothing of it is in memory then.
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let spawn = socket.until("task/spawn").await;
    assert_eq!(spawn["params"]["attempt"], 1);
    finish(&mut socket, &[spawn]).await;
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

/// A client that loses the answer to a call repeats it at once, before it reads what is new.
#[tokio::test]
async fn a_failure_that_is_repeated_after_a_cut_uses_up_one_attempt() {
    let error = json!({"message": "broken", "retryable": true});
    for (method, mut call) in
        [("task/result", json!({"error": error})), ("task/decline", json!({"reason": "busy"}))]
    {
        let shell = Shell::new();
        let daemon = Daemon::start(&shell.path("data"));
        let session = open(&daemon).await;
        let mut socket = session.connect(&daemon).await;
        let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
        let first = socket.until("task/spawn").await;
        call["task"] = first["params"]["task"].clone();
        call["idempotency_key"] = json!("k-1");
        assert_eq!(socket.ask(method, call.clone()).await["repeated"], false);
        assert_eq!(socket.until("task/spawn").await["params"]["attempt"], 2);
        socket.drop_dead();

        let mut socket = session.try_connect(&daemon, Some(1)).await.unwrap();
        let second = socket.until("task/spawn").await;
        assert_eq!(second["params"]["attempt"], 2, "{second}");
        for _ in 0..2 {
            let again = socket.ask(method, call.clone()).await;
            assert_eq!(again["repeated"], true, "{again}");
        }
        let list = socket.ask("tasks/list", json!({})).await;
        assert_eq!(list["items"][0]["attempt"], 2, "{list}");
        // Without the key, the same words are about the newest attempt.
        call.as_object_mut().unwrap().remove("idempotency_key");
        assert_eq!(socket.ask(method, call.clone()).await["repeated"], false);
        let third = socket.until("task/spawn").await;
        assert_eq!(third["params"]["attempt"], 3, "{third}");
        // With a number, they are about the attempt that it names.
        call["attempt"] = json!(2);
        if method == "task/decline" {
            assert_eq!(socket.ask(method, call).await["repeated"], true);
        }
        finish(&mut socket, &[third]).await;
        daemon.ended(&run).await;
    }
}

#[tokio::test]
async fn a_restart_adds_no_cancel_to_one_that_was_not_acknowledged() {
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    socket.until("task/spawn").await;
    let (status, view) = send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    assert_eq!(status, 200, "{view}");
    assert_eq!(socket.until("task/cancel").await["seq"], 2);
    for _ in 0..2 {
        daemon.kill();
        daemon = Daemon::start(&data);
        let (_, view) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
        assert_eq!(view["unacknowledged"], 2, "{view}");
        let mut socket = session.connect(&daemon).await;
        assert_eq!(socket.until("task/cancel").await["seq"], 2);
    }
}
