//! Conversations under an id of their own.

use serde_json::{Value, json};

use crate::{
    plain::daemon,
    support::{Daemon, Shell, send},
};

async fn said(daemon: &Daemon, id: &str) -> Vec<Value> {
    let (status, list) = send(daemon.get(&format!("/v1/conversations/{id}/items?order=asc"))).await;
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().unwrap().clone()
}

/// Creates a response and waits for it.
async fn create(daemon: &Daemon, body: Value) -> Value {
    let (status, response) = send(daemon.post("/v1/responses", &body)).await;
    assert_eq!(status, 200, "{response}");
    response
}

async fn begun(daemon: &Daemon) -> String {
    let body = json!({ "metadata": { "a": "b" }, "items": [{ "role": "user", "content": "one" }] });
    let (status, made) = send(daemon.post("/v1/conversations", &body)).await;
    assert_eq!((status, &made["object"]), (200, &json!("conversation")), "{made}");
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_conversation_is_created_shown_changed_and_deleted() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let id = begun(&daemon).await;
    let path = format!("/v1/conversations/{id}");
    let (_, shown) = send(daemon.get(&path)).await;
    assert_eq!((&shown["metadata"], &shown["id"]), (&json!({ "a": "b" }), &json!(id)));
    let (_, changed) = send(daemon.post(&path, &json!({ "metadata": { "c": "d" } }))).await;
    assert_eq!(changed["metadata"], json!({ "c": "d" }));

    let items = format!("{path}/items");
    let more = json!({ "items": [{ "role": "user", "content": "two" }] });
    let (status, added) = send(daemon.post(&items, &more)).await;
    assert_eq!((status, added["data"].as_array().unwrap().len()), (200, 1));
    let item = format!("{items}/{}", added["first_id"].as_str().unwrap());
    assert_eq!(send(daemon.get(&item)).await.1["content"][0]["text"], "two");
    assert_eq!(said(&daemon, &id).await.len(), 2);
    assert_eq!(send(daemon.with(&daemon.token, reqwest::Method::DELETE, &item)).await.0, 200);
    assert_eq!(send(daemon.get(&item)).await.0, 404);
    assert_eq!(said(&daemon, &id).await.len(), 1);

    let (_, gone) = send(daemon.with(&daemon.token, reqwest::Method::DELETE, &path)).await;
    assert_eq!((&gone["object"], &gone["deleted"]), (&json!("conversation.deleted"), &json!(true)));
    let (status, answer) = send(daemon.get(&path)).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn a_response_continues_a_conversation_and_is_added_to_it_once_also_over_a_restart() {
    let shell = Shell::new();
    let mut daemon = daemon(&shell).await;
    let id = begun(&daemon).await;
    let ask = |input: &str| json!({ "model": "mirror", "input": input, "conversation": id });
    let first = create(&daemon, ask("table")).await;
    assert_eq!(first["conversation"], json!({ "id": id }));
    let text = first["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap()["said"],
        2,
        "what was there, and its own"
    );
    assert_eq!(said(&daemon, &id).await.len(), 3);
    assert_eq!(create(&daemon, ask("fail")).await["status"], "failed");
    assert_eq!(said(&daemon, &id).await.len(), 3, "what failed said nothing");
    let unstored =
        json!({ "model": "mirror", "input": "x", "conversation": { "id": id }, "store": false });
    create(&daemon, unstored).await;

    let mut waits = ask("wait");
    waits["background"] = true.into();
    let keyed =
        |daemon: &Daemon| daemon.post("/v1/responses", &waits).header("idempotency-key", "once");
    let (status, waits) = send(keyed(&daemon)).await;
    assert_eq!(status, 200, "{waits}");
    // The conversation is in use, by the response to the same request.
    let (status, again) = send(keyed(&daemon)).await;
    assert_eq!((status, &again["id"]), (200, &waits["id"]), "{again}");
    let path = format!("/v1/conversations/{id}/items");
    let more = json!({ "items": [{ "role": "user", "content": "two" }] });
    for refused in [daemon.post("/v1/responses", &ask("x")), daemon.post(&path, &more)] {
        let (status, answer) = send(refused).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("conversation_locked")));
    }
    daemon.kill();
    daemon = Daemon::start(&shell.path("data"));
    let run = waits["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    assert_eq!(
        send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("gone on"))).await.0,
        204
    );
    daemon.ended(&run).await;
    let all = said(&daemon, &id).await;
    assert_eq!(all.len(), 7, "{all:?}");
    assert_eq!(all[6]["content"][0]["text"], "gone on");
    assert_eq!(said(&daemon, &id).await.len(), 7, "an answer is added once");
}

/// Stores the items of a conversation as the value of state that it is.
async fn holds(daemon: &Daemon, id: &str, items: Vec<Value>) {
    let path = format!("/v1/state/session:{id}/conversation");
    let (_, stored) = send(daemon.get(&path)).await;
    let mut value = stored["value"].clone();
    value["items"] = items.into();
    let (status, put) = send(daemon.put(&path, &json!({ "value": value }))).await;
    assert_eq!(status, 200, "{put}");
}

fn item(at: usize, text: &str) -> Value {
    json!({ "type": "message", "id": format!("msg_{at}"), "role": "user",
        "content": [{ "type": "input_text", "text": text }] })
}

#[tokio::test]
async fn a_conversation_that_outgrew_its_limit_is_shown_and_shortened() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let ask =
        |id: &str, input: &str| json!({ "model": "mirror", "input": input, "conversation": id });
    let (many, large) = (begun(&daemon).await, begun(&daemon).await);
    holds(&daemon, &many, (0..1_999).map(|at| item(at, "x")).collect()).await;
    // Without one of these and with its answer, it is still too large.
    holds(&daemon, &large, (0..40).map(|at| item(at, &"x".repeat(97_500))).collect()).await;
    for (id, input) in [(&many, "hi".to_owned()), (&large, "y".repeat(200_000))] {
        assert_eq!(create(&daemon, ask(id, &input)).await["status"], "completed");
        let path = format!("/v1/conversations/{id}");
        let (status, shown) = send(daemon.get(&path)).await;
        assert_eq!(status, 200, "{shown}");
        let (_, list) = send(daemon.get(&format!("{path}/items?limit=1"))).await;
        let last = list["data"][0]["content"][0]["text"].as_str().unwrap();
        assert!(last.starts_with("You said: "), "{id}: the answer is there");
        let (status, refused) = send(daemon.post("/v1/responses", &ask(id, "more"))).await;
        assert!(status == 400 || status == 413, "{id}: {status} {refused}");
        for at in 0..2 {
            let item = format!("{path}/items/msg_{at}");
            let delete = daemon.with(&daemon.token, reqwest::Method::DELETE, &item);
            let (status, gone) = send(delete).await;
            assert_eq!(status, 200, "{id}: {gone}");
        }
    }
    assert_eq!(create(&daemon, ask(&large, "more")).await["status"], "completed");
    let more = json!({ "items": [{ "role": "user", "content": "two" }] });
    let path = format!("/v1/conversations/{many}/items");
    assert_eq!(send(daemon.post(&path, &more)).await.0, 200);
    assert_eq!(send(daemon.post(&path, &more)).await.0, 400, "it has 2,000 again");
}

/// A client that may write the state of a conversation can store the id of any run in it.
#[tokio::test]
async fn a_conversation_takes_no_answer_in_that_was_not_for_it() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let (own, other) = (begun(&daemon).await, begun(&daemon).await);
    let ask = json!({ "model": "mirror", "input": "a secret", "conversation": other });
    let told = create(&daemon, ask).await;
    let run = told["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    let path = format!("/v1/state/session:{own}/conversation");
    let (status, stored) = send(daemon.get(&path)).await;
    assert_eq!(status, 200, "{stored}");
    let mut value = stored["value"].clone();
    value["continued_by"] = json!(run);
    let (status, put) = send(daemon.put(&path, &json!({ "value": value }))).await;
    assert_eq!(status, 200, "{put}");
    let all = said(&daemon, &own).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(said(&daemon, &other).await.len(), 3);
}

#[tokio::test]
async fn what_cannot_be_a_conversation_is_refused_by_its_name() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let id = begun(&daemon).await;
    let many: Vec<Value> = (0..21).map(|_| json!({ "role": "user", "content": "x" })).collect();
    for (path, body, status, param) in [
        ("/v1/conversations", json!({ "items": 1 }), 400, json!("items")),
        ("/v1/conversations", json!({ "items": many }), 400, json!("items")),
        ("/v1/conversations", json!({ "metadata": { "a": 1 } }), 400, json!("metadata.a")),
        (
            "/v1/conversations",
            json!({ "items": [{ "role": "robot" }] }),
            400,
            json!("items[0].role"),
        ),
        (
            "/v1/responses",
            json!({ "model": "mirror", "input": "x", "conversation": 7 }),
            400,
            json!("conversation"),
        ),
        (
            "/v1/responses",
            json!({ "model": "mirror", "input": "x", "conversation": "conv_x" }),
            404,
            Value::Null,
        ),
        (
            "/v1/responses",
            json!({ "model": "mirror", "input": "x", "conversation": id, "previous_response_id": "resp_x" }),
            400,
            json!("conversation"),
        ),
    ] {
        let (got, answer) = send(daemon.post(path, &body)).await;
        assert_eq!((got, &answer["error"]["param"]), (status, &param), "{body}: {answer}");
    }
    // A token that does not reach the state of the conversation does not reach it either.
    let ask = json!({ "role": "operator", "scopes": ["blueprint:mirror", "run:*"], "ttl": "1h" });
    let (_, minted) = send(daemon.post("/v1/tokens", &ask)).await;
    let token = minted["token"].as_str().unwrap();
    let path = format!("/v1/conversations/{id}");
    let (status, answer) = send(daemon.with(token, reqwest::Method::GET, &path)).await;
    assert_eq!((status, &answer["error"]["code"]), (403, &json!("forbidden_scope")));
}
