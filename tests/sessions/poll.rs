//! A session without a socket: polls and requests, with the promises of the WebSocket.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Opened, blueprint, open},
    support::{Daemon, Shell, eventually, refusal, schema::check_frame, send, when},
};

/// Three tasks at once.
const THREE: &str = r#"return ctx:map({ 1, 2, 3 }, function(i)
    return ctx:run("coder", { n = i }) end)"#;
/// Two of them.
const TWO: &str = r#"return ctx:map({ 1, 2 }, function(i)
    return ctx:run("coder", { n = i }) end)"#;
/// One task.
const ONE: &str = r#"return ctx:run("coder", {})"#;

impl Opened {
    fn at(&self, daemon: &Daemon, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http(daemon, method, &format!("/v1/sessions/{}/{path}", self.id))
    }

    fn call(&self, daemon: &Daemon, name: &str, body: Value) -> reqwest::RequestBuilder {
        self.at(daemon, Method::POST, name).json(&body)
    }

    /// The frames of a poll, and what the next one acknowledges.
    async fn poll(&self, daemon: &Daemon, query: &str) -> (Vec<Value>, u64) {
        let (status, view) = send(self.at(daemon, Method::POST, &format!("next?{query}"))).await;
        assert_eq!(status, 200, "{view}");
        let items = view["items"].as_array().unwrap().clone();
        for frame in &items {
            check_frame(frame);
        }
        (items, view["after"].as_u64().unwrap())
    }

    /// The next frame, which comes.
    async fn frame(&self, daemon: &Daemon, query: &str) -> Value {
        let (mut frames, after) = self.poll(daemon, &format!("wait=60s&{query}")).await;
        let frame = frames.pop().expect("a frame comes in time");
        assert!(frames.is_empty(), "one is the default");
        assert_eq!(frame["seq"], after);
        frame
    }

    async fn report(&self, daemon: &Daemon, frame: &Value, output: Value) -> Value {
        let body = json!({"task": frame["params"]["task"], "output": output});
        let (status, view) = send(self.call(daemon, "report", body)).await;
        assert_eq!(status, 200, "{view}");
        view
    }
}

#[tokio::test]
async fn a_task_is_done_without_a_socket() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    assert_eq!(session.poll(&daemon, "").await, (vec![], 0), "it does not wait unless asked");
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let spawn = session.frame(&daemon, "").await;
    assert_eq!((&spawn["method"], &spawn["seq"]), (&json!("task/spawn"), &json!(1)));
    let task = &spawn["params"]["task"];
    let (status, view) = send(session.call(&daemon, "accept", json!({"task": task}))).await;
    assert_eq!((status, &view), (200, &json!({"deadline": null})));
    let half = json!({"task": task, "text": "half", "percent": 50});
    assert_eq!(send(session.call(&daemon, "progress", half)).await.0, 204);
    let tasks = send(session.at(&daemon, Method::GET, "tasks")).await.1;
    assert_eq!(&tasks["items"][0]["id"], task, "{tasks}");
    assert_eq!(session.report(&daemon, &spawn, json!(7)).await["repeated"], false);
    assert_eq!(session.report(&daemon, &spawn, json!(7)).await["repeated"], true);
    let other = json!({"task": task, "output": 8});
    assert_eq!(refusal(session.call(&daemon, "report", other)).await.1, "already_accepted");
    assert_eq!(daemon.ended(&run).await["output"], 7);
    assert_eq!(session.poll(&daemon, "after=1").await, (vec![], 1));
}

#[tokio::test]
async fn what_was_not_acknowledged_comes_again_and_what_is_over_does_not() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(THREE), json!({})).await;
    let mut all = Vec::new();
    for after in ["", "after=1", "after=2"] {
        let frame = session.frame(&daemon, after).await;
        assert_eq!(session.frame(&daemon, after).await, frame, "it comes again, as it was");
        all.push(frame);
    }
    let unacked = session.poll(&daemon, "max=100").await.0;
    assert_eq!(unacked, all[2..], "two are acknowledged");
    for frame in &all {
        session.report(&daemon, frame, json!(1)).await;
    }
    daemon.ended(&run).await;
    // A client that never acknowledges is not sent what it has done.
    eventually("the end of the frame", async || {
        let left = session.poll(&daemon, "").await.0;
        when(left.is_empty(), format!("{left:?}"))
    })
    .await;
    let (status, view) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
    assert_eq!((status, &view["unacknowledged"]), (200, &json!(0)), "{view}");
    let ahead = refusal(session.at(&daemon, Method::POST, "next?after=99")).await;
    assert_eq!(ahead, (409, "seq_ahead".to_owned()));
}

#[tokio::test]
async fn a_newer_poll_or_socket_wins() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let poll = || {
        let request = session.at(&daemon, Method::POST, "next?wait=60s");
        tokio::spawn(refusal(request))
    };
    let connected = async || {
        eventually("the poll", async || {
            let view = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await.1;
            when(view["connected"] == true, view)
        })
        .await;
    };
    let first = poll();
    connected().await;
    // The second may arrive before the first one; exactly one is refused.
    let second = session.at(&daemon, Method::POST, "next?wait=60s");
    let second = tokio::spawn(send(second));
    let (status, code) = tokio::select! {
        first = first => first.unwrap(),
        second = second => {
            let (status, view) = second.unwrap();
            (status, view["code"].as_str().unwrap().to_owned())
        }
    };
    assert_eq!((status, code.as_str()), (409, "replaced"));
    let mut socket = session.connect(&daemon).await;
    assert_eq!(session.poll(&daemon, "").await.0, [] as [Value; 0]);
    assert_eq!(socket.end().await.0, 4000, "a poll is a newer connection as well");
}

#[tokio::test]
async fn nothing_is_lost_when_the_daemon_is_killed_between_a_poll_and_its_report() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(THREE), json!({})).await;
    let mut all: Vec<Value> = Vec::new();
    while all.len() < 3 {
        all = session.poll(&daemon, "wait=60s&max=3").await.0;
    }
    session.report(&daemon, &all[0], json!("one")).await;
    daemon.kill();

    let daemon = Daemon::start(&data);
    let mut left = session.poll(&daemon, "max=3").await.0;
    // What was done is over: a cancel may say so.
    left.retain(|frame| frame["method"] == "task/spawn" && frame["seq"] != 1);
    assert_eq!(left, all[1..], "the same numbers and handles");
    assert_eq!(session.report(&daemon, &all[0], json!("one")).await["repeated"], true);
    session.report(&daemon, &all[1], json!("two")).await;
    daemon.kill();

    let daemon = Daemon::start(&data);
    session.report(&daemon, &all[2], json!("three")).await;
    // Tasks that begin together come in any order.
    let view = daemon.ended(&run).await;
    let said: BTreeSet<_> = view["output"].as_array().unwrap().iter().map(Value::as_str).collect();
    assert_eq!(said, BTreeSet::from(["one", "two", "three"].map(Some)), "{view}");
    let mut left = session.poll(&daemon, "after=3").await.0;
    left.retain(|frame| frame["method"] == "task/spawn");
    assert_eq!(left, [] as [Value; 0]);
}

#[tokio::test]
async fn a_declined_task_comes_anew_and_a_question_is_answered() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let first = session.frame(&daemon, "").await;
    let task = first["params"]["task"].clone();
    let no = json!({"task": task, "reason": "busy"});
    assert_eq!(send(session.call(&daemon, "decline", no)).await.0, 204);
    let second = session.frame(&daemon, "after=1").await;
    assert_eq!((&second["params"]["task"], &second["params"]["attempt"]), (&task, &json!(2)));
    let asks = json!({"task": task, "question": "Which?"});
    assert_eq!(send(session.call(&daemon, "escalate", asks.clone())).await.0, 204);
    assert_eq!(refusal(session.call(&daemon, "escalate", asks)).await.1, "question_open");
    let advice = format!("/v1/tasks/{}/advice", task.as_str().unwrap());
    assert_eq!(send(daemon.post(&advice, &json!({"answer": "this"}))).await.0, 200);
    let answer = session.frame(&daemon, "after=2").await;
    assert_eq!(answer["method"], "task/answer", "{answer}");
    assert_eq!(answer["params"]["answer"], "this");
    session.report(&daemon, &second, json!(2)).await;
    assert_eq!(daemon.ended(&run).await["output"], 2);
}

/// Whoever repeats a report does not mean the next attempt, of which it knows nothing yet.
#[tokio::test]
async fn a_report_that_is_repeated_fails_no_later_attempt() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let first = session.frame(&daemon, "").await;
    let error = json!({"message": "broken", "retryable": true});
    let failed = json!({"task": first["params"]["task"], "error": error});
    let (status, told) = send(session.call(&daemon, "report", failed.clone())).await;
    assert_eq!(status, 200, "{told}");
    let attempt = async || {
        let path = format!("/v1/runs/{run}/steps");
        send(daemon.get(&path)).await.1["items"][0]["attempts"].clone()
    };
    eventually("the second attempt", async || {
        let attempt = attempt().await;
        when(attempt == 2, attempt)
    })
    .await;
    for _ in 0..2 {
        let (status, again) = send(session.call(&daemon, "report", failed.clone())).await;
        assert_eq!((status, &again["repeated"]), (200, &json!(true)), "{again}");
    }
    assert_eq!(attempt().await, 2);
    let second = session.frame(&daemon, "after=1").await;
    assert_eq!(second["params"]["attempt"], 2);
    session.report(&daemon, &second, json!(7)).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
}

/// Nor does whoever has only read another task meanwhile.
#[tokio::test]
async fn a_task_that_is_read_tells_nothing_of_another() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(TWO), json!({})).await;
    let a = session.frame(&daemon, "").await;
    let b = session.frame(&daemon, "after=1").await;
    let error = json!({"message": "broken", "retryable": true});
    let failed = json!({"task": a["params"]["task"], "error": error});
    let (status, told) = send(session.call(&daemon, "report", failed.clone())).await;
    assert_eq!(status, 200, "{told}");
    let attempts = async || {
        let steps = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await.1;
        let steps = steps["items"].as_array().unwrap().iter();
        steps.filter_map(|step| step["attempts"].as_u64()).max()
    };
    eventually("the second attempt", async || {
        let (_, view) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
        when(attempts().await == Some(2) && view["open_tasks"] == 2, view)
    })
    .await;
    let only = format!("tasks?task={}", b["params"]["task"].as_str().unwrap());
    let tasks = send(session.at(&daemon, Method::GET, &only)).await.1;
    assert_eq!(tasks["items"].as_array().map(Vec::len), Some(1), "{tasks}");
    assert_eq!(tasks["items"][0]["id"], b["params"]["task"]);
    let (status, again) = send(session.call(&daemon, "report", failed)).await;
    assert_eq!((status, &again["repeated"]), (200, &json!(true)), "{again}");
    assert_eq!(attempts().await, Some(2), "no third attempt");
    let second = session.frame(&daemon, "after=2").await;
    assert_eq!(second["params"]["attempt"], 2, "{second}");
    session.report(&daemon, &second, json!(1)).await;
    session.report(&daemon, &b, json!(2)).await;
    daemon.ended(&run).await;
}

/// A client that works on one task at a time need not acknowledge, also if a task is canceled.
#[tokio::test]
async fn a_cancel_comes_once_to_a_client_that_never_acknowledges() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    assert_eq!(session.frame(&daemon, "").await["method"], "task/spawn");
    let (status, view) = send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    assert_eq!(status, 200, "{view}");
    eventually("the cancel", async || {
        let frame = session.frame(&daemon, "").await;
        when(frame["method"] == "task/cancel", frame)
    })
    .await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let spawn = session.frame(&daemon, "").await;
    assert_eq!((&spawn["method"], &spawn["params"]["run"]), (&json!("task/spawn"), &json!(run)));
    session.report(&daemon, &spawn, json!(7)).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
}

#[tokio::test]
async fn a_session_that_lost_its_seat_is_fenced_and_sent_the_cancel() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let spawn = session.frame(&daemon, "").await;
    session.poll(&daemon, "after=1").await;
    let other = open(&daemon).await;
    let seat = format!("/v1/runs/{run}/seats/main-ai");
    assert_eq!(send(daemon.post(&seat, &json!({"session": other.id}))).await.0, 200);
    let cancel = session.frame(&daemon, "after=1").await;
    assert_eq!(cancel["method"], "task/cancel", "{cancel}");
    let late = json!({"task": spawn["params"]["task"], "output": 1});
    assert_eq!(refusal(session.call(&daemon, "report", late)).await.1, "fenced");
    // Nor as the one who has it now.
    for (call, body) in [
        ("report", json!({"output": 1})),
        ("decline", json!({"reason": "no"})),
        ("escalate", json!({"question": "Which?"})),
    ] {
        let mut body = body;
        body["task"] = spawn["params"]["task"].clone();
        body["attempt"] = json!(2);
        assert_eq!(refusal(session.call(&daemon, call, body)).await.1, "fenced", "{call}");
    }
    let spawn = other.frame(&daemon, "").await;
    other.report(&daemon, &spawn, json!(2)).await;
    assert_eq!(daemon.ended(&run).await["output"], 2);
}

#[tokio::test]
async fn a_session_is_used_with_its_own_token_and_for_its_own_tasks() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (session, other) = (open(&daemon).await, open(&daemon).await);
    let body = json!({"source": blueprint(ONE), "seats": {"main-ai": session.id}});
    assert_eq!(send(daemon.post("/v1/runs", &body)).await.0, 201);
    let spawn = session.frame(&daemon, "").await;
    let theirs = json!({"task": spawn["params"]["task"], "output": 1});
    assert_eq!(refusal(other.call(&daemon, "report", theirs.clone())).await.1, "foreign_task");
    let minted = send(daemon.post("/v1/tokens", &json!({"role": "operator", "ttl": "1h"}))).await.1;
    let stranger = minted["token"].as_str().unwrap().to_owned();
    for (token, path) in [(&other.token, "next"), (&stranger, "next"), (&other.token, "report")] {
        let path = format!("/v1/sessions/{}/{path}", session.id);
        let request = daemon.with(token, Method::POST, &path).json(&theirs);
        assert_eq!(refusal(request).await, (409, "wrong_seat".to_owned()), "{path}");
    }
    // The token that opened it speaks for it: it could use the session's own as well.
    let path = format!("/v1/sessions/{}/next", session.id);
    let again = send(daemon.post(&path, &json!({}))).await.1;
    assert_eq!(again["items"][0], spawn);
    for (query, code) in [("max=0", "bad_query"), ("max=101", "bad_query"), ("wait=x", "bad_query")]
    {
        let request = session.at(&daemon, Method::POST, &format!("next?{query}"));
        assert_eq!(refusal(request).await.1, code, "{query}");
    }
    let (status, renewed) = send(session.call(&daemon, "renew", json!({"ttl": "2h"}))).await;
    assert_eq!(status, 200, "{renewed}");
    let token = renewed["token"].as_str().unwrap();
    let path = format!("/v1/sessions/{}/tasks", session.id);
    let tasks = send(daemon.with(token, Method::GET, &path)).await.1;
    assert_eq!(tasks["items"].as_array().unwrap().len(), 1, "{tasks}");
    session.report(&daemon, &spawn, json!(1)).await;
    let gone = session.at(&daemon, Method::POST, "next?after=1&wait=60s");
    let gone = tokio::spawn(refusal(gone));
    eventually("the poll", async || {
        let view = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await.1;
        when(view["connected"] == true, view)
    })
    .await;
    let closed = daemon.delete(&format!("/v1/sessions/{}", session.id));
    assert_eq!(send(closed).await.0, 204);
    // The poll may have begun only after the session was closed.
    assert!(matches!(gone.await.unwrap().0, 401 | 404));
}

/// A client that works on one task at a time need not acknowledge its question either.
#[tokio::test]
async fn an_answer_comes_to_a_client_that_never_acknowledges() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let spawn = session.frame(&daemon, "").await;
    let task = &spawn["params"]["task"];
    let asks = json!({"task": task, "question": "Which?"});
    assert_eq!(send(session.call(&daemon, "escalate", asks)).await.0, 204);
    let advice = format!("/v1/tasks/{}/advice", task.as_str().unwrap());
    assert_eq!(send(daemon.post(&advice, &json!({"answer": "this"}))).await.0, 200);
    eventually("the answer", async || {
        let frame = session.frame(&daemon, "").await;
        when(frame["method"] == "task/answer" && frame["params"]["answer"] == "this", frame)
    })
    .await;
    session.report(&daemon, &spawn, json!(7)).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
    assert_eq!(session.poll(&daemon, "").await.0, [] as [Value; 0]);
}

/// Without a key, the same words are about the newest attempt.
#[tokio::test]
async fn a_client_that_numbers_nothing_fails_twice_in_the_same_words() {
    // The key of a step is in the frame of each attempt: it does not say that it is the same call.
    let keyed = r#"return ctx:run("coder", {}, { idempotency_key = "charge/A-1" })"#;
    for (by_number, flow) in [(false, ONE), (true, ONE), (true, keyed)] {
        let shell = Shell::new();
        let daemon = Daemon::start(&shell.path("data"));
        let session = open(&daemon).await;
        let run = daemon.run_source(&blueprint(flow), json!({})).await;
        let next = async |seen: &Value| match by_number {
            true => session.frame(&daemon, &format!("after={}", seen["seq"])).await,
            false => session.frame(&daemon, "").await,
        };
        let mut frame = session.frame(&daemon, "").await;
        let error = json!({"message": "broken", "retryable": true});
        let mut failed = json!({"task": frame["params"]["task"], "error": error});
        if flow == keyed {
            assert_eq!(frame["params"]["idempotency_key"], "charge/A-1");
            failed["idempotency_key"] = frame["params"]["idempotency_key"].clone();
        }
        for attempt in 1..=2 {
            assert_eq!(frame["params"]["attempt"], attempt, "{frame}");
            let (status, told) = send(session.call(&daemon, "report", failed.clone())).await;
            assert_eq!((status, &told["repeated"]), (200, &json!(false)), "{told}");
            frame = next(&frame).await;
        }
        assert_eq!(frame["params"]["attempt"], 3, "{frame}");
        session.report(&daemon, &frame, json!(7)).await;
        assert_eq!(daemon.ended(&run).await["output"], 7);
    }
}

/// A key says that it is the same call.
#[tokio::test]
async fn a_call_that_is_repeated_with_its_key_ends_no_attempt_that_is_not_acknowledged() {
    let error = json!({"message": "broken", "retryable": true});
    for (name, mut body) in
        [("report", json!({"error": error})), ("decline", json!({"reason": "busy"}))]
    {
        let shell = Shell::new();
        let daemon = Daemon::start(&shell.path("data"));
        let session = open(&daemon).await;
        let run = daemon.run_source(&blueprint(ONE), json!({})).await;
        let first = session.frame(&daemon, "").await;
        body["task"] = first["params"]["task"].clone();
        let call = async |key: &str| {
            let call = session.call(&daemon, name, body.clone()).header("Idempotency-Key", key);
            let (status, told) = send(call).await;
            assert!(matches!(status, 200 | 204), "{name}: {told}");
            told["repeated"].clone()
        };
        call("k-1").await;
        assert_eq!(session.frame(&daemon, "after=1").await["params"]["attempt"], 2);
        let repeated = call("k-1").await;
        assert_eq!(repeated, if name == "report" { json!(true) } else { Value::Null });
        let second = session.frame(&daemon, "after=1").await;
        assert_eq!((&second["seq"], &second["params"]["attempt"]), (&json!(2), &json!(2)));
        call("k-2").await;
        let third = session.frame(&daemon, "after=2").await;
        assert_eq!(third["params"]["attempt"], 3, "another key is another call: {third}");
        session.report(&daemon, &third, json!(7)).await;
        assert_eq!(daemon.ended(&run).await["output"], 7);
    }
}

/// Who only reads the frames and reports needs no right to fetch prompts.
#[tokio::test]
async fn a_session_without_the_right_to_prompts_acknowledges_its_tasks() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let verbs = ["session.open", "session.read", "worker.result"];
    let body = json!({"role": "operator", "verbs": verbs, "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    let path = "/v1/operators/main-ai/sessions";
    let ask = daemon.with(minted["token"].as_str().unwrap(), Method::POST, path);
    let (status, opened) = send(ask.json(&json!({}))).await;
    assert_eq!(status, 201, "{opened}");
    let text = |name: &str| opened[name].as_str().unwrap().to_owned();
    let session = Opened { id: text("session"), token: text("token") };
    let mut socket = session.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(ONE), json!({})).await;
    let spawn = socket.until("task/spawn").await;
    let task = spawn["params"]["task"].clone();
    assert_eq!(socket.refused("task/accept", json!({"task": task})).await, "forbidden_verb");
    socket.ask("ack", json!({"seq": 1})).await;
    let mut socket = session.try_connect(&daemon, Some(1)).await.unwrap();
    socket.ask("task/result", json!({"task": task, "output": 7})).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
}
