//! The operators of these tests: models that say what they are told to, and a server of tools.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    journal::Usage,
    middleware::TaskDone,
    operator::{Backend, Composite, Delivery, Reply, Residence, Task},
    protocol::{Failure, FunctionTool, Json, ModelReply, ModelRequest, ModelStop, failure::kind},
};

/// A model that says what stands in its instructions: a JSON list of answers, one a turn.
///
/// | answer | says |
/// |---|---|
/// | a text | that; `$seen` stands for the outputs that it sees, `$tools` for the tools |
/// | `[[name, arguments], …]` | calls; arguments that are a text are written as they are |
/// | `{"fail": kind}` | nothing: it fails |
/// | `{"wait": text}` | that, once [`Gate::open`] was called |
pub struct Scripted {
    pub asked: Arc<Mutex<Vec<ModelRequest>>>,
    pub gate: Arc<tokio::sync::Semaphore>,
}

impl Scripted {
    pub fn answer(&self, request: &ModelRequest) -> Result<(Vec<Value>, ModelStop), Value> {
        let last = request.items.last().map(Value::to_string).unwrap_or_default();
        if last.contains("Sum up the conversation") {
            return Ok((vec![text("in short")], ModelStop::End));
        }
        let instructions = request.instructions.as_deref().unwrap_or("[\"hello\"]");
        let script: Vec<Value> = serde_json::from_str(instructions).expect("a script");
        let said =
            |item: &Value| item["id"].as_str()?.strip_prefix('t')?.split('_').next()?.parse().ok();
        let turn: usize = request.items.iter().filter_map(said).max().map_or(0, |n: usize| n + 1);
        match script.get(turn).unwrap_or(&Value::Null) {
            Value::String(words) => {
                let seen = request.items.iter().filter(|it| it["type"] == "function_call_output");
                let seen: Vec<Value> = seen.map(|item| item["output"].clone()).collect();
                let tools: Vec<&str> = request.tools.iter().map(|it| it.name.as_str()).collect();
                let words = words.replace("$seen", &json!(seen).to_string());
                let words = words.replace("$tools", &tools.join(" "));
                Ok((vec![said_in(turn, &words)], ModelStop::End))
            }
            Value::Array(calls) => {
                let item = |(n, call): (usize, &Value)| {
                    let arguments = match &call[1] {
                        Value::String(text) => text.clone(),
                        Value::Null => "{}".to_owned(),
                        other => other.to_string(),
                    };
                    json!({
                        "type": "function_call", "id": format!("t{turn}_{n}"),
                        "call_id": format!("call_{turn}_{n}"), "name": call[0], "arguments": arguments,
                    })
                };
                Ok((calls.iter().enumerate().map(item).collect(), ModelStop::ToolCalls))
            }
            other => Err(other.clone()),
        }
    }
}

fn text(words: &str) -> Value {
    json!({ "type": "message", "role": "assistant",
        "content": [{ "type": "output_text", "text": words }] })
}

fn said_in(turn: usize, words: &str) -> Value {
    let mut item = text(words);
    item["id"] = format!("t{turn}").into();
    item
}

#[async_trait]
impl Backend for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn is_model(&self) -> bool {
        true
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        task.reporter.delivered(Delivery { worker: "model".into() });
        let request: ModelRequest = input.decode().expect("a model is asked as a model");
        self.asked.lock().push(request.clone());
        let (items, stop) = match self.answer(&request) {
            Ok(said) => said,
            Err(other) if other["wait"].is_string() => {
                tokio::select! {
                    () = task.cancel.cancelled() => {
                        return Err(Failure::new(kind::CANCELED, "given up"));
                    }
                    _ = self.gate.acquire() => {}
                }
                (vec![said_in(99, other["wait"].as_str().unwrap())], ModelStop::End)
            }
            Err(other) => {
                let kind = other["fail"].as_str().unwrap_or("model").to_owned();
                return Err(Failure::new(kind, "the script says so"));
            }
        };
        let reply = ModelReply { model: "scripted-1".into(), items, stop };
        let usage = Usage {
            input_tokens: Some(100),
            output_tokens: Some(10),
            cost: Some("0.01".into()),
            ..Usage::default()
        };
        let output = Json::encode(&reply).unwrap();
        Ok(Reply::Done(TaskDone { output, usage: Some(usage), effects: Vec::new() }))
    }
}

/// A model that never answers.
pub struct Mute;

#[async_trait]
impl Backend for Mute {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn is_model(&self) -> bool {
        true
    }

    async fn execute(&self, _: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        Err(Failure::new(kind::MODEL, "it is mute"))
    }
}

/// The mute one first, then the other.
pub struct Either(pub Composite);

#[async_trait]
impl Backend for Either {
    fn kind(&self) -> &'static str {
        "composite"
    }

    fn residence(&self) -> Residence {
        Residence::Inline
    }

    fn composite(&self) -> Option<&Composite> {
        Some(&self.0)
    }

    async fn execute(&self, _: Arc<Task>, _: Json) -> Result<Reply, Failure> {
        unreachable!("its members are")
    }
}

/// A server with the tools `read`, which gives its arguments back, and `drop`.
pub struct Server;

#[async_trait]
impl Backend for Server {
    fn kind(&self) -> &'static str {
        "mcp"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn list_tools(&self, _: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        let tool = |name: &str| FunctionTool {
            name: name.into(),
            description: Some("does it".into()),
            parameters: json!({ "type": "object", "properties": { "path": { "type": "string" } },
                "required": ["path"] }),
            strict: None,
        };
        Ok(vec![tool("read"), tool("drop")])
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let tool = task.agent.tool.clone().unwrap_or_default();
        Ok(Reply::Done(TaskDone::new(json!({ "tool": tool, "input": input }).into())))
    }
}
