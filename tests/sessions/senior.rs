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
