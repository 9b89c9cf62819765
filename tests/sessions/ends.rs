//! How connections and sessions end that nobody closed.

use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use moonswarm::{
    door::{DoorConfig, Limits},
    host::{Host, HostConfig},
};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{blueprint, open, open_with},
    support::{Daemon, Shell, eventually, send, when},
};

fn jti(token: &str) -> String {
    let claims = BASE64URL_NOPAD.decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    claims["jti"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_revoked_token_ends_the_socket_and_the_session() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let renewed = socket.ask("session/renew", json!({"ttl": "2h"})).await;
    let token = renewed["token"].as_str().unwrap().to_owned();
    assert_eq!(jti(&token), jti(&session.token), "a renewed token keeps its name");
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    socket.until("task/spawn").await;
    let revoke = daemon.delete(&format!("/v1/tokens/{}", jti(&session.token)));
    assert_eq!(send(revoke).await.0, 204);
    assert_eq!(socket.end().await.0, 4001);
    for token in [session.token.clone(), token] {
        let again = crate::client::Opened { id: session.id.clone(), token };
        assert_eq!(again.try_connect(&daemon, None).await.err().unwrap().0, 401);
    }
    let mut other = open(&daemon).await.connect(&daemon).await;
    let spawn = other.until("task/spawn").await;
    assert_eq!((&spawn["params"]["run"], &spawn["params"]["attempt"]), (&json!(run), &json!(2)));
}

#[tokio::test]
async fn a_session_ends_with_its_token_unless_that_is_renewed() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (short, kept) = (
        open_with(&daemon, json!({"ttl": "2s"})).await,
        open_with(&daemon, json!({"ttl": "2s"})).await,
    );
    let (mut ends, mut lives) = (short.connect(&daemon).await, kept.connect(&daemon).await);
    lives.ask("session/renew", json!({"ttl": "1h"})).await;
    assert_eq!(ends.end().await.0, 4002);
    assert_eq!(lives.ask("tasks/list", json!({})).await["items"], json!([]));
}

#[tokio::test]
async fn a_renewal_over_http_keeps_an_open_socket() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let kept = open_with(&daemon, json!({"ttl": "2s"})).await;
    let mut lives = kept.connect(&daemon).await;
    let renew = format!("/v1/sessions/{}/renew", kept.id);
    let renewal = kept.http(&daemon, reqwest::Method::POST, &renew).json(&json!({"ttl": "1h"}));
    assert_eq!(send(renewal).await.0, 200);
    // One that was opened later, for as long, ends in the meantime.
    let mut ends = open_with(&daemon, json!({"ttl": "2s"})).await.connect(&daemon).await;
    assert_eq!(ends.end().await.0, 4002);
    assert_eq!(lives.ask("tasks/list", json!({})).await["items"], json!([]));
}

#[tokio::test]
async fn a_renewal_never_shortens_a_token() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open_with(&daemon, json!({"ttl": "1h"})).await;
    let mut socket = session.connect(&daemon).await;
    let path = format!("/v1/sessions/{}", session.id);
    let (_, before) = send(daemon.get(&path)).await;
    let renewed = socket.ask("session/renew", json!({"ttl": "1s"})).await;
    assert_eq!(renewed["expires_at"], before["expires_at"], "{renewed}");
    assert_eq!(send(daemon.get(&path)).await.1["expires_at"], before["expires_at"]);
    let renewed = socket.ask("session/renew", json!({"ttl": "2h"})).await;
    assert_ne!(renewed["expires_at"], before["expires_at"], "{renewed}");
}

/// A host in this process whose sockets have little patience.
pub async fn impatient(shell: &Shell, limits: Limits) -> Host {
    let config = HostConfig {
        shards: 1,
        door: DoorConfig { limits, ..DoorConfig::default() },
        ..HostConfig::new(shell.path("data"))
    };
    Host::open(config).await.unwrap()
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_closed_as_slow_and_resumes() {
    let shell = Shell::new();
    let limits = Limits { send_time: Duration::from_millis(500), ..Limits::default() };
    let host = impatient(&shell, limits).await;
    let daemon = Daemon::of(host.url(), host.admin_token());
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let source = blueprint(
        r#"return #ctx:map({ 1, 2, 3, 4 }, function(i)
             return ctx:run("coder", { text = string.rep("x", 200000) })
           end)"#,
    );
    daemon.run_source(&source, json!({})).await;
    for _ in 0..4 {
        socket.until("task/spawn").await;
    }
    // Each answer has all prompts: together more than the buffers of two sockets hold.
    for id in 0..100 {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tasks/list"});
        socket.raw(Message::text(call.to_string())).await;
    }
    eventually("the end of the slow connection", async || {
        let (_, look) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
        when(look["connected"] == false, look)
    })
    .await;
    let mut answers = 0;
    while let Some(value) = socket.next().await {
        answers += u32::from(value.get("result").is_some());
    }
    assert!(answers < 100, "it was cut off");
    if let Some((code, _)) = socket.closed {
        assert_eq!(code, 1013);
    }
    let mut socket = session.try_connect(&daemon, Some(3)).await.unwrap();
    assert_eq!(socket.until("task/spawn").await["seq"], 4);
    drop(socket);
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_dropped() {
    let shell = Shell::new();
    let limits = Limits { ping: Duration::from_millis(100), ..Limits::default() };
    let host = impatient(&shell, limits).await;
    let daemon = Daemon::of(host.url(), host.admin_token());
    let (dead, alive) = (open(&daemon).await, open(&daemon).await);
    let _never_read = dead.connect(&daemon).await;
    let mut reads = alive.connect(&daemon).await;
    eventually("the end of the silent connection", async || {
        assert!(reads.is_silent("task/spawn", Duration::from_millis(50)).await);
        let look = send(daemon.get(&format!("/v1/sessions/{}", dead.id))).await.1;
        when(look["connected"] == false, look)
    })
    .await;
    let look = send(daemon.get(&format!("/v1/sessions/{}", alive.id))).await.1;
    assert_eq!(look["connected"], true, "{look}");
    host.stop(Duration::from_secs(5)).await;
}

/// Nothing is read from a peer that has as many calls in progress as it may: not even its pongs.
#[tokio::test]
async fn a_peer_with_as_many_calls_as_it_may_have_is_not_silent() {
    let shell = Shell::new();
    let limits = Limits { ping: Duration::from_millis(100), ..Limits::default() };
    let host = impatient(&shell, limits).await;
    let daemon = Daemon::of(host.url(), host.admin_token());
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"ctx:wait("go") return 1"#), json!({})).await;
    let params = json!({"run": run, "wait": "60s"});
    for id in 0..128 {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "run/get", "params": params});
        socket.raw(Message::text(call.to_string())).await;
    }
    // A silent peer is sent two.
    socket.pings(8).await;
    let go = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1));
    assert!(send(go).await.0 < 300);
    let mut answers = 0;
    while answers < 128 {
        let answer = socket.next().await.expect("the connection lives on");
        assert_eq!(answer["result"]["output"], 1, "{answer}");
        answers += 1;
    }
    assert_eq!(socket.ask("tasks/list", json!({})).await["items"], json!([]));
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_messages_of_calls_in_progress_are_counted_like_bodies() {
    let shell = Shell::new();
    let limits = Limits { body_bytes: 256 << 10, ..Limits::default() };
    let host = impatient(&shell, limits).await;
    let daemon = Daemon::of(host.url(), host.admin_token());
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let source = blueprint(r#"ctx:wait("go") return 1"#);
    let start = json!({"source": source, "input": "x".repeat(50_000), "wait": "60s"});
    let first = json!({"jsonrpc": "2.0", "id": "first", "method": "run/start", "params": start});
    socket.raw(Message::text(first.to_string())).await;
    assert_eq!(socket.refused("run/start", start.clone()).await, "busy");
    let run = eventually("the run", async || {
        let (_, page) = send(daemon.get("/v1/runs")).await;
        let run = page["items"][0]["id"].as_str().map(str::to_owned);
        run.ok_or(page)
    })
    .await;
    // A small message always has room.
    socket.ask("run/signal", json!({"run": run, "name": "go"})).await;
    assert_eq!(socket.answer(&json!("first")).await["result"]["output"], 1);
    let after = json!({"source": source, "input": start["input"]});
    assert!(socket.ask("run/start", after).await["id"].is_string());
    host.stop(Duration::from_secs(5)).await;
}
