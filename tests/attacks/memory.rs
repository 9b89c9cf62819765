//! Memory: whatever a run makes the host hold is counted against that run, and there is a total.
//!
//! Every daemon here has a limit of address space, under which an allocation too many ends it.

use std::ffi::OsStr;

use futures::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::support::{Daemon, PATIENCE, Shell, eventually, send, when};

/// The address space of each daemon.
const SPACE: u64 = 3 << 30;

/// A run that only waits for the signal `go`.
const NEIGHBOUR: &str = r#"
    local swarm = require("swarm")
    return swarm.blueprint { name = "neighbour", flow = function(ctx) return (ctx:wait("go")) end }
"#;

fn source(flow: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"it\", \
         agents = {{ work = {{ operator = \"queue\" }}, say = {{ operator = \"echo\" }} }}, \
         flow = function(ctx, input) {flow} end }}"
    )
}

/// A daemon under the limit, and three runs of others that wait.
async fn attacked(shell: &Shell) -> (Daemon, Vec<String>) {
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &[]);
    let mut neighbours = Vec::new();
    for _ in 0..3 {
        neighbours.push(daemon.run_source(NEIGHBOUR, Value::Null).await);
    }
    for run in &neighbours {
        daemon.waits(run, "signal").await;
    }
    (daemon, neighbours)
}

/// Waits until the run failed for what it holds, kills the host, and shows that the next start
/// works: the attacker stays ended, and the neighbours go on to their ends.
async fn fails_alone(shell: &Shell, daemon: Daemon, run: &str, neighbours: &[String], why: &str) {
    let view = daemon.ended(run).await;
    assert_eq!(view["status"], "failed", "{view}");
    assert_eq!(view["error"]["kind"], "limit", "{view}");
    let message = view["error"]["message"].as_str().unwrap();
    assert!(message.contains(why), "{message}");
    daemon.kill();
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &[]);
    assert_eq!(daemon.ended(run).await["error"]["kind"], "limit");
    for run in neighbours {
        let signal = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("on"));
        assert_eq!(send(signal).await.0, 204);
        assert_eq!(daemon.ended(run).await["output"], "on");
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_flood_of_state_ends_its_run_alone() {
    for bytes in [100_000, 300_000] {
        let shell = Shell::new();
        let (daemon, neighbours) = attacked(&shell).await;
        let flood = format!(
            "local i = 0 while true do i = i + 1 ctx.state:set(\"k\" .. i, (\"x\"):rep({bytes})) end"
        );
        let run = daemon.run_source(&source(&flood), Value::Null).await;
        fails_alone(&shell, daemon, &run, &neighbours, "own state").await;
    }
}

#[tokio::test]
async fn a_flow_that_catches_what_it_is_refused_ends_all_the_same() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let flood = "local i = 0 while true do i = i + 1 \
                 pcall(function() ctx.state:set(\"k\" .. i, (\"x\"):rep(1000000)) end) end";
    let run = daemon.run_source(&source(flood), Value::Null).await;
    fails_alone(&shell, daemon, &run, &neighbours, "own state").await;
}

#[tokio::test]
async fn a_history_without_end_ends_its_run_alone() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let flood = "while true do ctx.state:set(\"k\", (\"x\"):rep(3000000)) end";
    let run = daemon.run_source(&source(flood), Value::Null).await;
    fails_alone(&shell, daemon, &run, &neighbours, "one history").await;
}

#[tokio::test]
async fn a_transition_of_many_large_steps_ends_its_run_alone() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let wide = "local big = (\"x\"):rep(1000000) local all = {} \
                for i = 1, 300 do all[i] = function() return ctx:run(\"work\", { i, big }) end end \
                return #ctx:all(all)";
    let run = daemon.run_source(&source(wide), Value::Null).await;
    fails_alone(&shell, daemon, &run, &neighbours, "open steps").await;
}

#[tokio::test]
async fn a_wide_join_of_large_results_ends_its_run_alone() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let wide = "local big = (\"x\"):rep(1000000) local all = {} \
                for i = 1, 500 do all[i] = function() return ctx:run(\"say\", { i, big }) end end \
                return #ctx:all(all)";
    let run = daemon.run_source(&source(wide), Value::Null).await;
    let view = daemon.ended(&run).await;
    // Its script or the host holds the results: either way it is the run that is over its limit.
    assert_eq!(view["error"]["kind"], "limit", "{view}");
    daemon.kill();
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &[]);
    daemon.waits(&neighbours[0], "signal").await;
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn signals_that_nobody_takes_are_refused_once_they_weigh_too_much() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let (path, payload) =
        (format!("/v1/runs/{}/signals/other", neighbours[0]), json!("x".repeat(1_000_000)));
    let mut refused = None;
    for _ in 0..200 {
        let (status, body) = send(daemon.post(&path, &payload)).await;
        if status != 204 {
            refused = Some((status, body["code"].as_str().unwrap_or_default().to_owned()));
            break;
        }
    }
    assert_eq!(refused, Some((429, "run_full".to_owned())));
    daemon.kill();
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &[]);
    // The run itself did nothing wrong: it goes on.
    let signal = daemon.post(&format!("/v1/runs/{}/signals/go", neighbours[0]), &json!("on"));
    assert_eq!(send(signal).await.0, 204);
    assert_eq!(daemon.ended(&neighbours[0]).await["output"], "on");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn files_that_a_worker_sends_at_once_do_not_fill_the_host() {
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let run = daemon.run_source(&source("return ctx:run(\"work\", 1)"), Value::Null).await;
    let ask = json!({ "queue": "work", "wait": "30s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    let handle = leased[0]["handle"].as_str().unwrap_or_else(|| panic!("{leased}")).to_owned();
    let mut sent = tokio::task::JoinSet::new();
    for n in 0..24_u8 {
        let path = format!("/v1/worker/artifact?name=f{n}");
        let file = vec![n; 30 << 20];
        let request = daemon.with(&handle, Method::POST, &path).body(file);
        // One that is refused before its body was read may break off under the client.
        sent.spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) });
    }
    let mut taken = 0;
    while let Some(answer) = sent.join_next().await {
        let Ok(status) = answer.unwrap() else { continue };
        taken += usize::from(status == 200 || status == 201);
        assert!(matches!(status, 200 | 201 | 413 | 429 | 503), "{status}");
    }
    let result = daemon.with(&handle, Method::POST, "/v1/worker/result");
    assert_eq!(send(result.json(&json!({ "output": taken }))).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], json!(taken));
    daemon.waits(&neighbours[0], "signal").await;
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn many_runs_below_their_limits_do_not_fill_the_host() {
    let shell = Shell::new();
    let flags = ["--memory", "512MiB"].map(OsStr::new);
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &flags);
    // Each keeps 20 MiB in its script while it waits; together that is far more than there is. It
    // takes them bit by bit, for machines that are slow to give memory.
    let hold = "local held, text = {}, (\"x\"):rep(1000000) \
                for i = 1, 20 do held[i] = text .. i ctx:sleep(\"0s\") end \
                ctx:wait(\"go\") return #held";
    let mut runs = Vec::new();
    let since = std::time::Instant::now();
    while runs.len() < 100 {
        let body = json!({ "source": source(hold), "input": null });
        let (status, view) = send(daemon.post("/v1/runs", &body)).await;
        match status {
            201 => runs.push(view["id"].as_str().unwrap().to_owned()),
            503 => {
                assert_eq!(view["code"], "memory_full", "{view}");
                assert!(since.elapsed() < PATIENCE, "room is made for others: {}", runs.len());
            }
            other => panic!("{other} {view}"),
        }
        assert_eq!(send(daemon.get("/healthz")).await.0, 200);
    }
    for run in [&runs[0], &runs[50], &runs[99]] {
        eventually("the signal is accepted", async || {
            let signal = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1));
            let (status, body) = send(signal).await;
            assert!(matches!(status, 204 | 503), "{status} {body}");
            when(status == 204, body)
        })
        .await;
        assert_eq!(daemon.ended(run).await["output"], 20);
    }
    daemon.kill();
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &flags);
    assert_eq!(send(daemon.get("/healthz")).await.0, 200);
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn messages_that_wait_at_sockets_do_not_fill_the_host() {
    const SOCKETS: usize = 8;
    const MESSAGES: usize = 8;
    let shell = Shell::new();
    let (daemon, neighbours) = attacked(&shell).await;
    let put = daemon.put("/v1/blueprints/neighbour", &json!({ "source": NEIGHBOUR }));
    assert_eq!(send(put).await.0, 200);
    let create = |input: &str| {
        let create = json!({ "type": "response.create", "model": "neighbour", "input": input });
        Message::text(create.to_string())
    };
    let large = "x".repeat(7_900_000);
    let (mut sockets, mut refused) = (Vec::new(), 0);
    for _ in 0..SOCKETS {
        let url = format!("{}/v1/responses", daemon.url.replacen("http", "ws", 1));
        let mut request = url.into_client_request().unwrap();
        let bearer = format!("Bearer {}", daemon.token).parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let mut socket = connect_async(request).await.unwrap().0;
        socket.send(create("it waits")).await.unwrap();
        for _ in 0..MESSAGES {
            socket.send(create(&large)).await.unwrap();
        }
        // Its answer comes after those to everything before it.
        socket.send(Message::Ping(Default::default())).await.unwrap();
        loop {
            match timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap() {
                Message::Text(text) => refused += usize::from(text.contains("\"busy\"")),
                Message::Pong(_) => break,
                _ => {}
            }
        }
        sockets.push(socket);
    }
    // A quarter of 256 MiB is there for the messages of one token.
    assert!(refused >= SOCKETS * MESSAGES - 8, "{refused} were refused");
    assert!(daemon.resident() < 480 << 20, "{} bytes", daemon.resident());
    drop(sockets);
    let path = format!("/v1/runs/{}/signals/go", neighbours[0]);
    eventually("what waited is counted no more", async || {
        let (status, body) = send(daemon.post(&path, &json!("on"))).await;
        when(status == 204, body)
    })
    .await;
    assert_eq!(daemon.ended(&neighbours[0]).await["output"], "on");
    assert_eq!(daemon.stop(), Some(0));
}
