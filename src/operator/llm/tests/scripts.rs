//! A model with scripted answers.

use serde_json::{Value, json};

use super::{ask, hello, llm, reply, text_of};
use crate::{
    environment::Config,
    operator::{Backend as _, Builtin, Reply, Settings as _, fixture::Attempt},
    protocol::{Json, ModelReply, ModelStop},
};

fn script(turns: &Value) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turns.json");
    std::fs::write(&file, turns.to_string()).unwrap();
    let toml = format!("api = \"script\"\nturns = {file:?}");
    (dir, toml)
}

#[tokio::test]
async fn the_turn_follows_from_the_conversation() {
    let turns = json!([
        { "reasoning": "hm", "calls": [{ "name": "ls", "arguments": { "at": "/" } }],
          "usage": { "input": 10, "output": 5 } },
        "All done.",
        { "when": "weather", "text": "It rains." },
    ]);
    let (_dir, toml) = script(&turns);
    let llm = llm(&toml);
    let first = reply(&llm, hello()).await;
    assert_eq!((first.stop, first.model.as_str()), (ModelStop::ToolCalls, "script"));
    assert_eq!(first.calls().next().unwrap()["arguments"], "{\"at\":\"/\"}");

    let mut items = hello()["items"].as_array().unwrap().clone();
    items.extend(first.items.clone());
    let id = first.calls().next().unwrap()["call_id"].clone();
    items.push(json!({ "type": "function_call_output", "call_id": id, "output": "a b" }));
    let (answered, heard) = ask(&llm, json!({ "items": items })).await;
    let Ok(Reply::Done(done)) = answered else { panic!("{answered:?}") };
    let second: ModelReply = done.output.decode().unwrap();
    assert_eq!((second.text().as_str(), second.stop), ("All done.", ModelStop::End));
    assert_eq!(text_of(&heard.deltas()), "All done.");

    items.extend(second.items);
    items.push(json!({ "role": "user", "content": "And the weather?" }));
    assert_eq!(reply(&llm, json!({ "items": items })).await.text(), "It rains.");
    items.push(json!({ "role": "user", "content": "And now?" }));
    let failure = ask(&llm, json!({ "items": items })).await.0.unwrap_err();
    assert!(failure.message.contains("no turn 3 for worker"), "{failure}");
}

#[tokio::test]
async fn attempts_fail_as_they_are_told_to_and_agents_have_turns_of_their_own() {
    let turns = json!({
        "worker": [{ "fail": [{ "status": 429, "message": "slow", "retry_after": "2s" }],
                     "text": "at last" }],
        "*": ["somebody else"],
    });
    let (_dir, toml) = script(&turns);
    let llm = llm(&toml);
    let failure = ask(&llm, hello()).await.0.unwrap_err();
    assert!(failure.retryable && failure.message.contains("slow"), "{failure}");
    assert_eq!(failure.data.unwrap().to_value()["retry_after_ms"], 2_000);
    let mut again = Attempt::new().task();
    std::sync::Arc::get_mut(&mut again).unwrap().attempt = 2;
    let Ok(Reply::Done(done)) = llm.execute(again, hello().into()).await else { panic!("it ends") };
    assert_eq!(done.output.decode::<ModelReply>().unwrap().text(), "at last");
    let mut other = Attempt::new().task();
    std::sync::Arc::get_mut(&mut other).unwrap().agent_name = "other".into();
    let Ok(Reply::Done(done)) = llm.execute(other, hello().into()).await else { panic!("it ends") };
    assert_eq!(done.output.decode::<ModelReply>().unwrap().text(), "somebody else");
}

#[tokio::test]
async fn a_task_that_was_passed_on_is_a_message_and_its_value_the_models_text() {
    let (_dir, toml) = script(&json!([{ "when": "hello", "text": "hello too" }]));
    let llm = llm(&toml);
    let mut task = Attempt::new().task();
    std::sync::Arc::get_mut(&mut task).unwrap().passed_on = true;
    let input = Json::parse("\"hello\"").unwrap();
    let Ok(Reply::Done(done)) = llm.execute(task, input).await else { panic!("it ends") };
    assert_eq!(done.output.as_str(), "\"hello too\"");
}

#[tokio::test]
async fn an_agents_function_answers() {
    let llm = llm("api = \"script\"");
    let task = Attempt::new().agent(|agent| agent.has_fn = true).task();
    let Ok(Reply::Done(done)) = llm.execute(task, hello().into()).await else { panic!("it ends") };
    assert_eq!(done.output.decode::<ModelReply>().unwrap().text(), "worker heard 1");
    let failure = ask(&llm, hello()).await.0.unwrap_err();
    assert!(failure.message.contains("has no `fn`"), "{failure}");
}

#[tokio::test]
async fn a_script_that_cannot_be_read_says_why() {
    let (_dir, toml) = script(&json!([{ "txet": "x" }]));
    let failure = ask(&llm(&toml), hello()).await.0.unwrap_err();
    assert!(failure.message.contains("unknown field `txet`"), "{failure}");
    let builtin = Builtin::alone(Config::default());
    let nowhere = "api = \"script\"\nturns = \"/nonexistent/turns.json\"";
    let settings: super::LlmSettings = toml::from_str(nowhere).unwrap();
    assert!(settings.inspect(&builtin).await.unwrap_err().contains("failed to read the turns"));
    let (_dir, toml) = script(&json!({ "a": ["x", "y"], "b": ["z"] }));
    let settings: super::LlmSettings = toml::from_str(&toml).unwrap();
    assert!(settings.inspect(&builtin).await.unwrap().contains("3 turns"));
    let input = Json::parse(r#"{"prompt":"no items"}"#).unwrap();
    let failure = llm(&toml).execute(Attempt::new().task(), input).await.unwrap_err();
    assert_eq!(failure.kind, "invalid_input");
}
