//! The operator against a provider of the test, over real sockets.

#[path = "../../../tests/support/provider.rs"]
#[expect(dead_code, reason = "the tests over the whole program use the rest")]
mod provider;

mod asks;
mod scripts;
mod trouble;

use std::{path::PathBuf, sync::Arc};

use serde_json::{Value, json};

use self::provider::{Provider, Turn};
use super::{provider::Llm, settings::LlmSettings};
use crate::{
    clock::Clock,
    operator::{
        Backend as _, Builtin, Reply,
        fixture::{Attempt, Heard},
    },
    protocol::{Failure, Json, ModelDelta, ModelReply, ModelStop},
};

const APIS: [&str; 3] = ["chat", "responses", "anthropic"];

fn llm(toml: &str) -> Llm {
    let settings: LlmSettings = toml::from_str(toml).unwrap();
    let builtin = Builtin {
        lua: Arc::new(|task, input| {
            let items = input.to_value()["items"].as_array().map_or(0, Vec::len);
            let said = json!({ "text": format!("{} heard {items}", task.agent_name) });
            Box::pin(async { Ok(said.into()) })
        }),
        bundle_dir: Arc::new(|_| Ok(PathBuf::new())),
        queues: Arc::default(),
        sessions: Arc::default(),
        environments: crate::operator::fixture::environments(),
        clock: Clock::manual(1_445_412_480_000 - 3_000),
        stopping: tokio_util::sync::CancellationToken::new(),
    };
    Llm::new(settings, &builtin)
}

fn at(provider: &Provider, api: &str, more: &str) -> Llm {
    llm(&format!(
        "api = {api:?}\nbase_url = {:?}\nmodel = \"mock\"\nallow_hosts = [\"127.0.0.1\"]\n{more}",
        provider.base_url
    ))
}

fn hello() -> Value {
    json!({ "items": [{ "type": "message", "role": "user", "content": "hello" }] })
}

async fn ask(llm: &Llm, request: Value) -> (Result<Reply, Failure>, Arc<Heard>) {
    let attempt = Attempt::new();
    let heard = attempt.heard();
    (llm.execute(attempt.task(), request.into()).await, heard)
}

async fn reply(llm: &Llm, request: Value) -> ModelReply {
    match ask(llm, request).await.0 {
        Ok(Reply::Done(done)) => done.output.decode().unwrap(),
        other => panic!("it is no reply: {other:?}"),
    }
}

/// Returns the failure and its code.
async fn failure(llm: &Llm) -> (Failure, String) {
    let failure = match ask(llm, hello()).await.0 {
        Err(failure) => failure,
        Ok(Reply::Short(short)) => short.failure,
        other => panic!("it is no failure: {other:?}"),
    };
    let data = failure.data.as_ref().map(Json::to_value).unwrap_or_default();
    let code = data["code"].as_str().unwrap_or_default().to_owned();
    (failure, code)
}

fn text_of(pieces: &[ModelDelta]) -> String {
    pieces
        .iter()
        .filter_map(|piece| match piece {
            ModelDelta::Text { delta, .. } => Some(delta.as_str()),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn every_api_comes_to_the_same_reply_with_the_same_usage_and_cost() {
    let turn = Turn {
        reasoning: "let me see",
        text: "I read it.",
        calls: vec![("call_1", "read", "{\"path\": \"a.txt\"}"), ("call_2", "ls", "{}")],
    };
    for api in APIS {
        let provider = Provider::says(vec![turn.clone()]);
        let prices = "[prices.mock]\ninput = 1\ncached = \"0.1\"\noutput = 2";
        let (answered, heard) = ask(&at(&provider, api, prices), hello()).await;
        let Ok(Reply::Done(done)) = answered else { panic!("{api}: {answered:?}") };

        let reply: ModelReply = done.output.decode().unwrap();
        assert_eq!((reply.model.as_str(), reply.stop), ("mock-1", ModelStop::ToolCalls), "{api}");
        assert_eq!(reply.text(), "I read it.");
        let kinds: Vec<&str> = reply.items.iter().filter_map(|it| it["type"].as_str()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"], "{api}");
        assert!(reply.items.iter().all(|it| it["id"].as_str().is_some_and(|id| !id.is_empty())));
        let calls: Vec<_> = reply.calls().map(|it| (&it["call_id"], &it["arguments"])).collect();
        let expected = [("call_1", "{\"path\": \"a.txt\"}"), ("call_2", "{}")];
        assert_eq!(
            calls,
            expected.map(|(id, text)| (json!(id), json!(text))).each_ref().map(|it| (&it.0, &it.1))
        );
        assert_eq!(reply.items[0]["content"][0]["text"], "let me see", "{api}");

        let usage = done.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.cached_tokens), (Some(100), Some(40)), "{api}");
        assert_eq!(usage.output_tokens, Some(20));
        // 60 * 1 + 40 * 0.1 + 20 * 2, over a million.
        assert_eq!(usage.cost.as_deref(), Some("0.000104"), "{api}");
        let reasoning = if api == "anthropic" { None } else { Some(5) };
        assert_eq!(usage.reasoning_tokens, reasoning);

        let pieces = heard.deltas();
        assert_eq!(text_of(&pieces), "I read it.", "{api}");
        let begun: Vec<_> =
            pieces.iter().filter(|it| matches!(it, ModelDelta::Item { .. })).collect();
        assert_eq!(begun.len(), 4, "{api}: {pieces:?}");
        let done: Vec<Value> = pieces
            .iter()
            .filter_map(|it| match it {
                ModelDelta::Done { whole, .. } => Some(whole.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(done, reply.items, "{api}");
        let argued: String = pieces
            .iter()
            .filter_map(|it| match it {
                ModelDelta::Arguments { item: 2, delta } => Some(delta.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(argued, "{\"path\": \"a.txt\"}", "{api}");
    }
}

#[tokio::test]
async fn the_key_goes_in_its_header_is_said_to_be_used_and_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-canary-123\n").unwrap();
    for (api, header) in [
        ("chat", "authorization: bearer sk-canary-123"),
        ("responses", "authorization: bearer sk-canary-123"),
        ("anthropic", "x-api-key: sk-canary-123"),
    ] {
        let provider = Provider::says(vec![Turn::text("your key is sk-canary-123 !")]);
        let llm = at(&provider, api, &format!("key = {{ file = {file:?} }}"));
        let (answered, heard) = ask(&llm, hello()).await;
        let Ok(Reply::Done(done)) = answered else { panic!("{answered:?}") };
        assert!(!done.output.as_str().contains("canary"), "{api}: {}", done.output);
        let pieces = format!("{:?}", heard.deltas());
        assert!(pieces.contains("[secret") && !pieces.contains("canary"), "{api}: {pieces}");
        assert_eq!(heard.secrets().len(), 1);
        let asked = provider.asked().remove(0);
        assert!(asked.head.contains(header), "{}", asked.head);
    }
}

#[tokio::test]
async fn a_key_that_an_error_repeats_is_taken_out_of_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-canary-123").unwrap();
    let provider = Provider::start(|_, _| {
        let body = r#"{"error":{"message":"no such key: sk-canary-123","code":"sk-canary-123"}}"#;
        provider::Answer::document("401 Unauthorized", "", body)
    });
    let llm = at(&provider, "chat", &format!("key = {{ file = {file:?} }}"));
    let (failure, code) = failure(&llm).await;
    assert_eq!(code, "auth");
    assert!(!failure.retryable);
    let shown = format!("{failure} {:?}", failure.data);
    assert!(shown.contains("[secret authorization]") && !shown.contains("canary"), "{shown}");
}

#[tokio::test]
async fn the_model_is_the_layers_the_requests_the_agents_or_the_operators() {
    let provider =
        Provider::start(|_, asked| provider::Answer::turn(&Turn::text("x"), &asked.path));
    let llm = at(&provider, "chat", "");
    let own = |model: Option<&str>| {
        let model = model.map(str::to_owned);
        Attempt::new().agent(|agent| agent.model = model).task()
    };
    let request = json!({ "items": [], "model": "asked" });
    llm.execute(own(None), json!({ "items": [] }).into()).await.unwrap();
    llm.execute(own(Some("agent")), json!({ "items": [] }).into()).await.unwrap();
    llm.execute(own(Some("agent")), request.clone().into()).await.unwrap();
    let changed = own(Some("agent"));
    let config = crate::protocol::OperatorConfig::default().with_model("cheaper");
    changed.config.set(config).unwrap();
    llm.execute(changed, request.into()).await.unwrap();
    let models: Vec<_> = provider.asked().iter().map(|it| it.body["model"].clone()).collect();
    assert_eq!(models, ["mock", "agent", "asked", "cheaper"]);
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_asked() {
    let provider = Provider::says(vec![Turn::text("x")]);
    let strict = llm(&format!("api = \"chat\"\nmodel = \"m\"\nbase_url = {:?}", provider.base_url));
    let (failure, _) = failure(&strict).await;
    assert_eq!(failure.kind, "refused");
    assert!(failure.message.contains("allow_hosts"), "{failure}");
    assert!(provider.asked().is_empty());
}
