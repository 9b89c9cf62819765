//! The response loop in a program of one's own: `cargo run --example response_loop`.
//!
//! The model is an operator as `moonswarm.toml` declares it; here one whose answers are written down.

use async_trait::async_trait;
use moonswarm::{
    operator::Declared,
    protocol::{FunctionTool, Json, ModelRequest},
    respond::multi_step::{
        Chains, LlmModel, NewResponse, RequestContext, ResponseLoop, ToolError, ToolExecutor,
        ToolKind, ToolLoop, ToolSchema, run_response_loop,
    },
};
use serde_json::{Value, json};

/// One tool, which adds two numbers.
struct Adds;

#[async_trait]
impl ToolExecutor for Adds {
    async fn tools(&self, _: &RequestContext) -> Vec<ToolSchema> {
        let (name, parameters) = ("add".to_owned(), json!({ "type": "object" }));
        let kind = ToolKind::Http;
        vec![ToolSchema { name, description: String::new(), parameters, strict: false, kind }]
    }

    async fn execute(
        &self,
        _: &str,
        _: &str,
        given: &Value,
        _: &RequestContext,
    ) -> Result<Value, ToolError> {
        Ok((given["a"].as_i64().unwrap_or(0) + given["b"].as_i64().unwrap_or(0)).into())
    }
}

const TURNS: &str = r#"[
    { "calls": [{ "name": "add", "arguments": { "a": 19, "b": 23 } }] },
    { "text": "It is 42." }
]"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("turns.json"), TURNS)?;

    let file = "[operators.gpt]\nkind = 'llm'\napi = 'script'\nturns = 'turns.json'";
    let operators = file.parse::<Declared>()?.beside(dir.path());
    let (model, context) = (LlmModel::declared(&operators, "gpt")?, RequestContext::new());
    let chains = Chains::in_memory(ToolLoop::default());
    let (name, parameters) = ("add".to_owned(), json!({ "type": "object" }));
    let request = ModelRequest {
        items: vec![json!({ "type": "message", "role": "user", "content": "19 + 23?" })],
        tools: vec![FunctionTool { name, description: None, parameters, strict: None }],
        ..ModelRequest::default()
    };
    let asked = NewResponse { request: Json::encode(&request)?, principal: "me".into() };
    let id = chains.begin(asked).await?;
    let answer =
        run_response_loop(ResponseLoop::new(&chains, &Adds, &model, &context), &id).await?;
    println!("{}", answer["items"][2]["content"][0]["text"]);
    Ok(())
}
