//! A plain operator of the protocol that reads state: `cargo run --example custom_operator`.

use std::sync::Arc;

use async_trait::async_trait;
use moonswarm::{
    host::{Host, HostConfig},
    operator::Coded,
    protocol::{
        Content, ExitReason, Operator, OperatorError, OperatorInput, OperatorOutput, Scope,
        StateReader,
    },
};

/// Counts the words of what it is asked, but for those that its run does not want counted.
struct WordCount {
    state: Arc<dyn StateReader>,
}

#[async_trait]
impl Operator for WordCount {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let run =
            Scope::Workflow(input.metadata["moonswarm"]["run"].as_str().unwrap_or_default().into());
        let ignored = self.state.read(&run, "ignored").await;
        let ignored = ignored.map_err(|error| OperatorError::NonRetryable(error.to_string()))?;
        let counts = |word: &&str| ignored.as_ref() != Some(&(*word).into());
        let words = input.message.as_text().unwrap_or_default().split_whitespace();
        let count = words.filter(counts).count();
        Ok(OperatorOutput::new(Content::text(count.to_string()), ExitReason::Complete))
    }
}

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "count", agents = { count = { operator = "words" } },
  flow = function(ctx, input)
    ctx.state:set("ignored", "and")
    return ctx:run("count", input)
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let config = HostConfig {
        // One for each attempt, with state as that attempt may read it. An operator that reads
        // none is put in with `and_operator`.
        code: Coded::default().and_reader("words", |state| WordCount { state }),
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &serde_json::json!("one two and three")).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(std::time::Duration::from_secs(5)).await;
    Ok(())
}
