//! An attempt that asks, and a senior who answers.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{blueprint, open},
    support::{Daemon, Shell, refusal, send},
};

async fn senior(daemon: &Daemon) -> String {
    let body = json!({"role": "senior", "scopes": ["*"], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_answer_is_for_the_question_that_the_senior_saw() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    let task = socket.until("task/spawn").await["params"]["task"].clone();
    let path = format!("/v1/tasks/{}", task.as_str().unwrap());
    let token = senior(&daemon).await;
    let ask = json!({"task": task, "question": "May I?"});
    socket.ask("task/escalate", ask.clone()).await;
    let (_, shown) = send(daemon.with(&token, Method::GET, &path)).await;
    assert!(shown["revision"].is_string(), "{shown}");

    socket.ask("task/decline", json!({"task": task})).await;
    assert_eq!(socket.until("task/spawn").await["params"]["attempt"], 2);
    // The same words of another attempt are another question.
    socket.ask("task/escalate", ask).await;
    let advise =
        |body: Value| daemon.with(&token, Method::POST, &format!("{path}/advice")).json(&body);
    let stale = json!({"answer": "yes", "revision": shown["revision"]});
    assert_eq!(refusal(advise(stale)).await, (409, "stale_task".to_owned()));
    let stale = json!({"answer": "yes", "attempt": 1});
    assert_eq!(refusal(advise(stale)).await, (409, "stale_task".to_owned()));
    let (_, now) = send(daemon.with(&token, Method::GET, &path)).await;
    assert_ne!(now["revision"], shown["revision"], "{now}");
    let fresh = json!({"answer": "yes", "attempt": 2, "revision": now["revision"]});
    assert_eq!(send(advise(fresh)).await.0, 200);
    assert_eq!(socket.until("task/answer").await["params"]["attempt"], 2);
    socket.ask("task/result", json!({"task": task, "output": 1})).await;
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

#[tokio::test]
async fn a_question_waits_for_a_senior_and_the_answer_goes_to_the_same_attempt() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("timed", {})"#), json!({})).await;
    let spawn = socket.until("task/spawn").await["params"].clone();
    let task = spawn["task"].as_str().unwrap();
    let ask = json!({"task": task, "question": "Tabs or spaces?", "data": {"file": "a.c"}});
    socket.ask("task/escalate", ask.clone()).await;
    assert_eq!(socket.refused("task/escalate", ask).await, "question_open");
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    let on = &view["waiting_on"][0];
    assert_eq!(view["status"], "waiting", "{view}");
    assert_eq!(on["subject"]["question"], "Tabs or spaces?", "{view}");
    assert_eq!(on["subject"]["task"], task, "{view}");
    // The question outlives the daemon.
    daemon.kill();
    let daemon = Daemon::start(&data);
    let mut socket = session.connect(&daemon).await;

    let advice = format!("/v1/tasks/{task}/advice");
    let answer = json!({"answer": "spaces"});
    let as_session = session.http(&daemon, Method::POST, &advice).json(&answer);
    assert_eq!(refusal(as_session).await, (403, "forbidden_verb".to_owned()));
    let token = senior(&daemon).await;
    let advise = || daemon.with(&token, Method::POST, &advice).json(&answer);
    let (status, told) = send(advise()).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(refusal(advise()).await, (409, "no_question".to_owned()));

    let said = socket.until("task/answer").await["params"].clone();
    assert_eq!((&said["answer"], &said["attempt"]), (&json!("spaces"), &json!(1)), "{said}");
    assert_eq!(said["question"], "Tabs or spaces?");
    let handle = spawn["handle"].as_str().unwrap();
    let (_, prompt) = send(daemon.with(handle, Method::GET, "/v1/worker/prompt")).await;
    assert_eq!(prompt["advice"]["answer"], "spaces", "{prompt}");
    assert_eq!(prompt["advice"]["data"], json!({"file": "a.c"}), "{prompt}");
    assert!(prompt["deadline"].is_string(), "its time goes on: {prompt}");
    socket.ask("task/result", json!({"task": task, "output": "done"})).await;
    assert_eq!(daemon.ended(&run).await["output"], "done");
    let (_, steps) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    let attempts = steps["items"].as_array().map(|steps| steps[0]["attempts"].clone());
    assert_eq!(attempts, Some(Value::from(1)), "{steps}");
}

/// The host died after the answer was stored, and before its session was told.
#[tokio::test]
async fn an_answer_that_was_stored_reaches_its_session_after_a_kill() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::launch(&data, &[("MOONSWARM_KILL_AT", "engine.tell_session#1")]).unwrap();
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("timed", {})"#), json!({})).await;
    let spawn = socket.until("task/spawn").await;
    socket.ask("ack", json!({"seq": spawn["seq"]})).await;
    let task = spawn["params"]["task"].as_str().unwrap();
    socket.ask("task/escalate", json!({"task": task, "question": "Tabs or spaces?"})).await;
    // It dies before it answers.
    let advice = format!("/v1/tasks/{task}/advice");
    let _ = daemon.post(&advice, &json!({"answer": "spaces"})).send().await;
    assert!(daemon.died(), "it is not killed");

    let daemon = Daemon::start(&data);
    let mut socket = session.connect(&daemon).await;
    let said = socket.until("task/answer").await["params"].clone();
    assert_eq!((&said["answer"], &said["attempt"]), (&json!("spaces"), &json!(1)), "{said}");
    assert_eq!((&said["question"], &said["task"]), (&json!("Tabs or spaces?"), &json!(task)));
    socket.ask("task/result", json!({"task": task, "output": "done"})).await;
    assert_eq!(daemon.ended(&run).await["output"], "done");
}
