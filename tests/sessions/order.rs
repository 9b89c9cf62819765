//! Calls about a run reach it in the order of their messages.

use serde_json::json;

use crate::{
    client::{blueprint, open},
    support::{Daemon, Shell},
};

/// The number of signals that are sent at once.
const SIGNALS: u64 = 60;

#[tokio::test]
async fn signals_that_are_sent_at_once_arrive_in_their_order() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let body = format!(
        r#"local got = {{}}
        for i = 1, {SIGNALS} do got[i] = ctx:wait("go") end
        return got"#
    );
    let run = socket.ask("run/start", json!({"source": blueprint(&body)})).await["id"].clone();
    for n in 1..=SIGNALS {
        let mut signal = json!({"run": run, "name": "go", "payload": n});
        // One with a key has more to read before it is sent.
        if n % 2 == 0 {
            signal["idempotency_key"] = json!(format!("k{n}"));
        }
        socket.begin(1_000 + n, "run/signal", signal).await;
    }
    for n in 1..=SIGNALS {
        let answer = socket.answer(&json!(1_000 + n)).await;
        assert_eq!(answer["result"]["queued"], true, "{answer}");
    }
    let view = socket.ask("run/get", json!({"run": run, "wait": "60s"})).await;
    let sent: Vec<u64> = (1..=SIGNALS).collect();
    assert_eq!(view["output"], json!(sent), "{view}");
}

#[tokio::test]
async fn a_cancel_does_not_overtake_the_signals_before_it() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    for round in 0..20 {
        let start = json!({"source": blueprint(r#"ctx:wait("never")"#)});
        let run = socket.ask("run/start", start).await["id"].clone();
        for n in [1, 2] {
            let signal = json!({"run": run, "name": "go", "payload": n});
            socket.begin(1_000 + n, "run/signal", signal).await;
        }
        socket.begin(1_003, "run/cancel", json!({"run": run})).await;
        for n in [1, 2] {
            let answer = socket.answer(&json!(1_000 + n)).await;
            assert_eq!(answer["result"]["queued"], true, "round {round}: {answer}");
        }
        let canceled = socket.answer(&json!(1_003)).await;
        assert_eq!(canceled["result"]["status"], "canceled", "round {round}: {canceled}");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_its_answer_holds_back_no_other() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let start = json!({"source": blueprint(r#"return ctx:wait("go")"#)});
    let run = socket.ask("run/start", start).await["id"].clone();
    socket.begin(1_001, "run/get", json!({"run": run, "wait": "60s"})).await;
    socket.ask("run/signal", json!({"run": run, "name": "go", "payload": 7})).await;
    let view = socket.answer(&json!(1_001)).await;
    assert_eq!(view["result"]["output"], 7, "{view}");
}
