//! A coded operator that models call as a tool: `cargo run --example coded_tool`.

use async_trait::async_trait;
use moonswarm::{
    Coded, Content, ExitReason, Host, HostConfig, Operator, OperatorError, OperatorInput,
    OperatorOutput, protocol::ToolMetadata,
};
use serde_json::{Value, json};

/// Adds two numbers.
struct Adds;

#[async_trait]
impl Operator for Adds {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        // The arguments of the call, which fit the schema below.
        let text = input.message.as_text().unwrap_or_default();
        let arguments: Value = serde_json::from_str(text)
            .map_err(|error| OperatorError::NonRetryable(error.to_string()))?;
        let number = |key: &str| arguments[key].as_i64().unwrap_or_default();
        let sum = number("a").saturating_add(number("b"));
        Ok(OperatorOutput::new(Content::text(sum.to_string()), ExitReason::Complete))
    }
}

fn metadata() -> ToolMetadata {
    let number = json!({ "type": "integer" });
    let schema = json!({
        "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"],
    });
    ToolMetadata::new("add", "Adds two numbers.", schema, true)
}

// The model is scripted: the first time it calls the tool, then it says what it saw.
const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "sums",
  agents = { it = { operator = "model", tools = { { operator = "adds" } }, fn = function(request)
    local last = request.items[#request.items]
    if last.type == "function_call_output" then return { text = "It is " .. last.output .. "." } end
    return { calls = { { name = request.tools[1].name, arguments = { a = 40, b = 2 } } } }
  end } },
  flow = function(ctx) return ctx:run("it", "What is 40 and 2?") end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let config = HostConfig {
        operators: "[operators.model]\nkind = \"llm\"\napi = \"script\"".parse()?,
        code: Coded::default().and_operator("adds", Adds).with_tool("adds", metadata()),
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(std::time::Duration::from_secs(5)).await;
    Ok(())
}
