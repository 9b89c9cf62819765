//! Providers that stall, truncate, flood and send invalid data.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    APIS, Provider, Turn, ask, at, failure, hello,
    provider::{Answer, Bit, Gate},
    reply,
};
use crate::{
    operator::{Backend as _, fixture::Attempt},
    protocol::{Failure, ModelStop},
};

fn send(text: &str) -> Bit {
    Bit::Send(text.as_bytes().to_vec())
}

/// Waits until the provider notices that the client has disconnected.
async fn hears_of_it(left: Gate) {
    let (tell, told) = tokio::sync::oneshot::channel();
    let waits = move || {
        left.pass();
        tell.send(()).unwrap();
    };
    std::thread::Builder::new().name("gate".to_owned()).spawn(waits).unwrap();
    told.await.unwrap();
}

/// Returns the failure that a response of these bytes leads to.
async fn comes_to(api: &str, bytes: &[u8]) -> (Failure, String) {
    let bytes = bytes.to_vec();
    let provider = Provider::start(move |_, _| Answer::stream(vec![Bit::Send(bytes.clone())]));
    failure(&at(&provider, api, "")).await
}

#[tokio::test]
async fn an_answer_that_is_not_what_the_api_says_is_malformed() {
    let call = |call: &str| {
        format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")
    };
    let calls = [call("{\"index\":0,\"function\":{\"arguments\":\"{}\"}}"), call("7")];
    for (api, bytes, why) in [
        ("chat", "data: {\"choices\": [\n\n", "no JSON"),
        ("chat", "data: hello\n\n", "no JSON"),
        ("chat", "data: {\"id\": 1}\n\n", "no choices"),
        ("chat", "data: {\"choices\":[{\"delta\":{\"content\":7}}]}\n\n", "neither text nor list"),
        ("chat", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":7}]}\n\n", "is no text"),
        ("chat", &calls[0], "a call has no name"),
        ("chat", &calls[1], "a call has no name"),
        ("responses", "data: {\"x\": 1}\n\n", "no type"),
        (
            "responses",
            "data: {\"type\":\"response.output_text.delta\",\"output_index\":3,\"delta\":\"x\"}\n\n",
            "belongs to no item",
        ),
        ("responses", "data: {\"type\":\"response.completed\",\"response\":{}}\n\n", "no status"),
        ("responses", "event: response.completed\ndata: []\n\n", "no response"),
        (
            "responses",
            "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[5]}}\n\n",
            "an item is no object",
        ),
        (
            "responses",
            "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"content\":[5]}}\n\n\
             data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"x\"}\n\n",
            "belongs to no item",
        ),
        (
            "anthropic",
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n",
            "belongs to no block",
        ),
        (
            "anthropic",
            "data: {\"type\":\"content_block_start\",\"content_block\":{}}\n\n",
            "no index",
        ),
    ] {
        let (failure, code) = comes_to(api, bytes.as_bytes()).await;
        assert_eq!((code.as_str(), failure.retryable), ("malformed", true), "{bytes}: {failure}");
        assert!(failure.message.contains(why), "{bytes}: {failure}");
    }
}

#[tokio::test]
async fn short_deltas_begin_only_so_many_parts() {
    // The last part of an item that has none, in one item after another.
    let item = |n: usize| {
        format!(
            "data: {{\"type\":\"response.output_item.added\",\"output_index\":{n},\
             \"item\":{{\"type\":\"message\",\"content\":[]}}}}\n\n\
             data: {{\"type\":\"response.output_text.delta\",\"output_index\":{n},\
             \"content_index\":999,\"delta\":\"x\"}}\n\n"
        )
    };
    let items = |count: usize| (0..count).map(item).collect::<Vec<_>>().concat();
    let (failure, code) = comes_to("responses", items(5).as_bytes()).await;
    assert_eq!((code.as_str(), failure.retryable), ("malformed", true), "{failure}");
    assert!(failure.message.contains("more than 4000 parts"), "{failure}");
    let (failure, code) = comes_to("responses", items(4).as_bytes()).await;
    assert_eq!(code, "cut", "{failure}");
}

#[tokio::test]
async fn half_a_character_is_no_text() {
    for api in APIS {
        let (failure, code) = comes_to(api, b"data: {\"x\":\"\xf0\x9f\"}\n\n").await;
        assert_eq!(code, "malformed");
        assert!(failure.message.contains("not UTF-8"), "{failure}");
    }
    // A character split across two packets is valid.
    let provider = Provider::start(|_, asked| {
        let whole: Vec<u8> = Turn::text("🌙 moon").events(&asked.path).concat().into_bytes();
        Answer::stream(whole.chunks(1).map(|byte| Bit::Send(byte.to_vec())).collect())
    });
    for api in APIS {
        assert_eq!(reply(&at(&provider, api, ""), hello()).await.text(), "🌙 moon", "{api}");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_no_answer() {
    for api in APIS {
        for ending in [vec![], vec![Bit::Cut]] {
            let ending = parking_lot::Mutex::new(Some(ending));
            let provider = Provider::start(move |_, asked| {
                let mut events = Turn::text("half of it").events(&asked.path);
                events.truncate(4);
                let mut bits: Vec<Bit> = events.iter().map(|it| send(it)).collect();
                bits.extend(ending.lock().take().unwrap());
                Answer::stream(bits)
            });
            let (failure, code) = failure(&at(&provider, api, "")).await;
            assert_eq!((code.as_str(), failure.retryable), ("cut", true), "{api}: {failure}");
        }
    }
}

#[tokio::test]
async fn an_empty_reason_is_no_end() {
    let chunk = r#"data: {"choices":[{"delta":{"content":"half of it"},"finish_reason":""}]}"#;
    let (failure, code) = comes_to("chat", format!("{chunk}\n\n").as_bytes()).await;
    assert_eq!((code.as_str(), failure.retryable), ("cut", true), "{failure}");
}

#[tokio::test]
async fn a_provider_that_stalls_is_left_and_hears_of_it() {
    for (more, bits) in [("first_byte = \"30ms\"", 0), ("between_bytes = \"30ms\"", 3)] {
        let left = Gate::default();
        let gate = left.clone();
        let provider = Provider::start(move |_, asked| {
            let events = Turn::text("a b c d").events(&asked.path);
            let mut bits: Vec<Bit> = events.iter().take(bits).map(|it| send(it)).collect();
            bits.push(Bit::Stall(gate.clone()));
            Answer::stream(bits)
        });
        let (failure, code) = failure(&at(&provider, "chat", more)).await;
        assert_eq!((failure.kind.as_str(), code.as_str()), ("timeout", "stalled"), "{failure}");
        assert!(failure.retryable);
        hears_of_it(left).await;
    }
}

#[tokio::test]
async fn an_attempt_that_is_given_up_hangs_up() {
    let (asked, left) = (Arc::new(tokio::sync::Notify::new()), Gate::default());
    let (asks, leaves) = (Arc::clone(&asked), left.clone());
    let provider = Provider::start(move |_, _| {
        asks.notify_one();
        Answer::stream(vec![Bit::Stall(leaves.clone())])
    });
    let llm = at(&provider, "chat", "");
    let task = Attempt::new().task();
    let cancel = task.cancel.clone();
    let ((), ended) = tokio::join!(
        async {
            asked.notified().await;
            cancel.cancel();
        },
        llm.execute(task, hello().into()),
    );
    assert_eq!(ended.unwrap_err().kind, "canceled");
    hears_of_it(left).await;
}

#[tokio::test]
async fn a_flood_is_cut_at_its_limit() {
    let chunk = "data: {\"choices\":[{\"delta\":{\"content\":\"more and more \"}}]}\n\n".repeat(50);
    for flood in [chunk.clone().into_bytes(), b": ping\n".repeat(200), b"data: xxxxxxxx".to_vec()] {
        let provider = Provider::start(move |_, _| Answer::stream(vec![Bit::Flood(flood.clone())]));
        let (failure, code) = failure(&at(&provider, "chat", "max_answer = 100000")).await;
        assert_eq!((failure.kind.as_str(), code.as_str()), ("limit", "too_long"), "{failure}");
        assert!(!failure.retryable);
    }
}

#[tokio::test]
async fn an_error_inside_of_a_200_is_the_error_that_it_is() {
    let overloaded = json!({ "error": { "type": "overloaded_error", "message": "busy" } });
    let event = json!({ "type": "error", "error": overloaded["error"] });
    let failed = json!({ "type": "response.failed", "response": { "status": "failed",
        "error": { "code": "rate_limit_exceeded", "message": "slow down" } } });
    for (api, said, expected) in [
        ("chat", &overloaded, "overloaded"),
        ("responses", &overloaded, "overloaded"),
        ("anthropic", &overloaded, "overloaded"),
        ("responses", &event, "overloaded"),
        ("anthropic", &event, "overloaded"),
        ("responses", &failed, "rate_limited"),
    ] {
        let (failure, code) = comes_to(api, format!("data: {said}\n\n").as_bytes()).await;
        assert_eq!((code.as_str(), failure.retryable), (expected, true), "{api} {said}: {failure}");
        let body = said.to_string();
        let provider = Provider::start(move |_, _| Answer::document("200 OK", "", &body));
        let (_, code) = super::failure(&at(&provider, api, "")).await;
        let document = if said == &failed { "malformed" } else { expected };
        assert_eq!(code, document, "{api} {said}");
    }
    let page =
        Provider::start(|_, _| Answer::document("200 OK", "content-type: text/html\r\n", "<html>"));
    assert_eq!(failure(&at(&page, "chat", "")).await.1, "malformed");
}

#[tokio::test]
async fn a_whole_document_does_as_well_as_a_stream() {
    let call = json!({ "id": "c1", "type": "function",
        "function": { "name": "ls", "arguments": "{\"at\":\"/\"}" } });
    let chat = json!({ "model": "m", "choices": [{ "index": 0, "finish_reason": "tool_calls",
        "message": { "role": "assistant", "content": "hi", "tool_calls": [call] } }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 2 } });
    let response = json!({ "model": "m", "status": "completed", "error": null, "output": [
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "hi" }] },
        { "type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{\"at\":\"/\"}" }],
        "usage": { "input_tokens": 3, "output_tokens": 2 } });
    let message = json!({ "type": "message", "model": "m", "stop_reason": "tool_use",
        "usage": { "input_tokens": 3, "output_tokens": 2 }, "content": [
            { "type": "text", "text": "hi" },
            { "type": "tool_use", "id": "c1", "name": "ls", "input": { "at": "/" } }] });
    for (api, document) in APIS.into_iter().zip([chat, response, message]) {
        let body = document.to_string();
        let provider = Provider::start(move |_, _| Answer::document("200 OK", "", &body));
        let reply = reply(&at(&provider, api, ""), hello()).await;
        assert_eq!((reply.text().as_str(), reply.stop), ("hi", ModelStop::ToolCalls), "{api}");
        let call = reply.calls().next().unwrap();
        assert_eq!(
            (&call["call_id"], &call["arguments"]),
            (&json!("c1"), &json!("{\"at\":\"/\"}"))
        );
    }
}

#[tokio::test]
async fn arguments_are_the_providers_own_text_and_never_something_else() {
    for api in APIS {
        let broken = Turn::calls(&[("c1", "ls", "{\"path\": oops"), ("c2", "ls", "[1]")]);
        let provider = Provider::says(vec![broken]);
        let reply = reply(&at(&provider, api, ""), hello()).await;
        let arguments: Vec<&Value> = reply.calls().map(|call| &call["arguments"]).collect();
        assert_eq!(arguments, ["{\"path\": oops", "[1]"], "{api}");
    }
}

#[tokio::test]
async fn calls_without_an_id_get_one_of_their_own_and_two_of_one_id_are_refused() {
    for api in APIS {
        let nameless = Turn::calls(&[("", "ls", "{}"), ("", "ls", "{}")]);
        let provider = Provider::says(vec![nameless.clone(), nameless]);
        let llm = at(&provider, api, "");
        let first = reply(&llm, hello()).await;
        let ids: Vec<&str> = first.calls().filter_map(|call| call["call_id"].as_str()).collect();
        assert!(ids.iter().all(|id| id.starts_with("call_")) && ids[0] != ids[1], "{api}: {ids:?}");
        let again = reply(&llm, hello()).await;
        let same: Vec<&str> = again.calls().filter_map(|call| call["call_id"].as_str()).collect();
        assert_eq!(ids, same, "{api}");
    }
    for api in ["responses", "anthropic"] {
        let provider = Provider::says(vec![Turn::calls(&[("c", "a", "{}"), ("c", "b", "{}")])]);
        let (failure, code) = failure(&at(&provider, api, "")).await;
        assert_eq!(code, "malformed", "{api}: {failure}");
    }
}

#[tokio::test]
async fn servers_that_count_calls_otherwise_are_understood() {
    let chunk = |calls: Value, reason: Value| {
        let choice =
            json!({ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": reason });
        format!("data: {}\n\n", json!({ "choices": [choice] }))
    };
    let call = |index: Value, id: &str, arguments: Value| json!([{ "index": index, "id": id, "function": { "name": "ls", "arguments": arguments } }]);
    // All at index 0; no index at all; arguments as an object.
    let texts = [
        chunk(call(json!(0), "a", json!("{\"n\":1}")), Value::Null)
            + &chunk(call(json!(0), "b", json!("{\"n\":2}")), json!("tool_calls")),
        chunk(call(Value::Null, "a", json!("{\"n\":1}")), Value::Null)
            + &chunk(call(Value::Null, "b", json!("{\"n\":2}")), json!("stop")),
        chunk(call(json!(0), "a", json!({ "n": 1 })), Value::Null)
            + &chunk(call(json!(1), "b", json!({ "n": 2 })), json!("tool_calls")),
    ];
    for text in texts {
        let bytes = text.clone();
        let provider = Provider::start(move |_, _| Answer::stream(vec![send(&bytes)]));
        let reply = reply(&at(&provider, "chat", ""), hello()).await;
        let calls: Vec<_> = reply
            .calls()
            .map(|it| (it["call_id"].as_str().unwrap(), it["arguments"].as_str().unwrap()))
            .collect();
        assert_eq!(calls, [("a", "{\"n\":1}"), ("b", "{\"n\":2}")], "{text}");
        assert_eq!(reply.stop, ModelStop::ToolCalls);
    }
}

#[tokio::test]
async fn what_an_attempt_used_before_it_failed_is_reported() {
    let provider = Provider::start(|_, _| {
        let usage =
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";
        Answer::stream(vec![send(usage)])
    });
    let (answered, _) = ask(&at(&provider, "chat", ""), hello()).await;
    let Ok(crate::operator::Reply::Short(short)) = answered else { panic!("{answered:?}") };
    assert_eq!(short.usage.unwrap().input_tokens, Some(9));
    assert!(short.failure.retryable);
}

#[tokio::test]
async fn a_provider_says_when_to_come_back() {
    for (header, ms) in [
        ("retry-after: 7\r\n", Some(7_000)),
        ("retry-after: 0.25\r\n", Some(250)),
        ("retry-after-ms: 40\r\nretry-after: 7\r\n", Some(40)),
        // The clock of the test is three seconds before that.
        ("retry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\n", Some(3_000)),
        ("retry-after: Wed, 21 Oct 2009 07:28:00 GMT\r\n", Some(0)),
        ("retry-after: soon\r\n", None),
        ("x-request-id: r-1\r\n", None),
    ] {
        let headers = header.to_owned();
        let provider = Provider::start(move |_, _| {
            Answer::document(
                "429 Too Many Requests",
                &headers,
                "{\"error\":{\"message\":\"slow\"}}",
            )
        });
        let (failure, code) = failure(&at(&provider, "anthropic", "")).await;
        assert_eq!((code.as_str(), failure.retryable), ("rate_limited", true));
        let data = failure.data.unwrap().to_value();
        assert_eq!(data["retry_after_ms"].as_u64(), ms, "{header}");
        assert_eq!(data["status"], 429);
        let id = header.starts_with("x-request-id").then_some("r-1");
        assert_eq!(data["request_id"].as_str(), id);
    }
}

#[tokio::test]
async fn nobody_there_is_worth_another_attempt() {
    let provider = Provider::says(vec![]);
    let llm = at(&provider, "chat", "");
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    drop(llm);
    let nobody = super::llm(&format!(
        "api = \"chat\"\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\n\
         allow_hosts = [\"127.0.0.1\"]"
    ));
    let (failure, _) = failure(&nobody).await;
    assert_eq!((failure.kind.as_str(), failure.retryable), ("operator_unavailable", true));
}
