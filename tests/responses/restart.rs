//! Responses across the end of a daemon.

use serde_json::json;

use crate::{
    checker::{check_stream, events, kinds},
    plain::{create, gone, put},
    support::{Daemon, Shell, send},
};

#[tokio::test]
async fn a_response_in_the_background_goes_on_after_a_kill_and_is_created_once() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    put(&daemon, "mirror", crate::plain::MIRROR).await;
    let body = json!({ "model": "mirror", "input": "wait", "background": true });
    let id = create(&daemon, body).await["id"].as_str().unwrap().to_owned();
    daemon.kill();

    let daemon = Daemon::start(&data);
    let path = format!("/v1/responses/{id}");
    let reading = daemon.get(&format!("{path}?stream=true")).send().await.unwrap();
    let run = id.replacen("resp_", "run_", 1);
    let go = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("at last"));
    assert_eq!(send(go).await.0, 204);
    let stream = events(reading).await;
    let response = check_stream(&stream, true);
    assert_eq!(response["output"][0]["content"][0]["text"], "at last");
    assert_eq!(kinds(&stream).iter().filter(|kind| **kind == "created").count(), 1);
    let (_, again) = send(daemon.get(&path)).await;
    assert_eq!(again, response);
    daemon.kill();

    let daemon = Daemon::start(&data);
    let rest = daemon.get(&format!("{path}?stream=true&starting_after=3")).send().await.unwrap();
    assert_eq!(events(rest).await, stream[4..]);
}

#[tokio::test]
async fn what_is_not_to_be_stored_goes_also_when_the_daemon_was_killed_before() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    put(&daemon, "mirror", crate::plain::MIRROR).await;
    let body = json!({ "model": "mirror", "input": "wait", "store": false, "stream": true });
    let mut answer = daemon.post("/v1/responses", &body).send().await.unwrap();
    let first = answer.chunk().await.unwrap().unwrap();
    let text = std::str::from_utf8(&first).unwrap();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    daemon.kill();

    let daemon = Daemon::start(&data);
    let run = id.replacen("resp_", "run_", 1);
    let go = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("x"));
    assert_eq!(send(go).await.0, 204);
    gone(&daemon, &format!("/v1/responses/{id}")).await;
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]));
}
