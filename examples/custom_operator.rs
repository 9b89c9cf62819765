//! A plain operator of the protocol, used by a blueprint: `cargo run --example custom_operator`.

use async_trait::async_trait;
use moonswarm::{
    host::{Host, HostConfig},
    operator::Coded,
    protocol::{Content, ExitReason, Operator, OperatorError, OperatorInput, OperatorOutput},
};

/// Counts the words of what it is asked.
struct WordCount;

#[async_trait]
impl Operator for WordCount {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let words = input.message.as_text().unwrap_or_default().split_whitespace().count();
        Ok(OperatorOutput::new(Content::text(words.to_string()), ExitReason::Complete))
    }
}

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "count", agents = { count = { operator = "words" } },
  flow = function(ctx, input) return ctx:run("count", input) end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let config = HostConfig {
        code: Coded::default().and_operator("words", WordCount),
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &serde_json::json!("one two three")).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(std::time::Duration::from_secs(5)).await;
    Ok(())
}
