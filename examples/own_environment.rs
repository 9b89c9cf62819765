//! An environment of one's own: `cargo run --example own_environment`.
//!
//! It could start a container, or ask another machine. This one only says what it is asked for.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use moonswarm::{
    Coded, Content, ExitReason, Host, HostConfig, OperatorInput, OperatorOutput,
    protocol::{EnvError, Environment, EnvironmentSpec},
};
use serde_json::{Value, json};

struct Container;

#[async_trait]
impl Environment for Container {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        // The message is what the command would read from stdin.
        let command = &input.metadata["moonswarm"]["command"];
        let memory = spec.resources.as_ref().and_then(|it| it.memory.clone());
        let answer = json!({
            "program": command["program"], "args": command["args"], "memory": memory,
            "stdin": input.message.as_text(),
        });
        Ok(OperatorOutput::new(Content::text(answer.to_string()), ExitReason::Complete))
    }
}

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "contained",
  agents = { it = { operator = "process", environment = "box", command = { "wc", "-w" } } },
  flow = function(ctx) return ctx:run("it", "two words") end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let mut config = HostConfig::new(data.path());
    config.code = Coded::default().and_environment("box", Arc::new(Container));
    // What the environment is to give stands in the configuration, as for the host's own.
    let limits = json!({ "isolation": "local", "resources": { "memory": "1Gi" } });
    let declared = serde_json::from_value(limits)?;
    config.environments.environments.insert("box".to_owned(), declared);
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(Duration::from_secs(5)).await;
    Ok(())
}
