//! Code of one's own in a host: `cargo run --example plug_in`.
//!
//! An operator behind an `Arc<dyn Operator>`, a middleware that knows the protocol alone, and an
//! adapter that starts the workers of one operator.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use moonswarm::{
    Coded, Content, ExitReason, Host, HostConfig, Middleware, Operator, OperatorError,
    OperatorInput, OperatorOutput,
    middleware::{DispatchStack, ProtocolLayer, Stacks, TaskDone},
    operator::{Reply, Task},
    protocol::{
        Failure, Json, OperatorId, OrchError, WorkerId,
        middleware::{DispatchMiddleware, DispatchNext},
    },
    spawner::{SpawnerAdapter, Spawners, Worker},
};
use serde_json::Value;

/// Answers in capitals.
struct Shouts;

#[async_trait]
impl Operator for Shouts {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let text = input.message.as_text().unwrap_or_default().to_uppercase();
        Ok(OperatorOutput::new(Content::text(text), ExitReason::Complete))
    }
}

/// Answers itself where it can, and has another operator answer what is quiet.
struct Front;

#[async_trait]
impl DispatchMiddleware for Front {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        match input.message.as_text() {
            Some("ping") => Ok(OperatorOutput::new(Content::text("pong"), ExitReason::Complete)),
            Some(text) if text.starts_with('(') => next.dispatch(&"echo".into(), input).await,
            _ => next.dispatch(operator, input).await,
        }
    }
}

/// Starts the workers of an operator somewhere else; here they have their answer at once.
struct Elsewhere;

struct Done(WorkerId, Json);

#[async_trait]
impl SpawnerAdapter for Elsewhere {
    async fn spawn(&self, task: Arc<Task>, _: Json) -> Result<Box<dyn Worker>, Failure> {
        let worker = format!("a worker for {}", task.agent_name);
        Ok(Box::new(Done(task.worker(), Value::from(worker).into())))
    }
}

#[async_trait]
impl Worker for Done {
    fn id(&self) -> WorkerId {
        self.0
    }

    async fn join(self: Box<Self>) -> Result<Reply, Failure> {
        Ok(Reply::Done(TaskDone::new(self.1)))
    }
}

const BLUEPRINT: &str = r#"return require("swarm").blueprint { name = "plugged",
  agents = { w = { operator = "shouts" }, far = { operator = "far" } },
  flow = function(ctx)
    return { ctx:run("w", "moon"), ctx:run("w", "ping"), ctx:run("w", "(quiet)"), ctx:run("far", "x") }
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let operator: Arc<dyn Operator> = Arc::new(Shouts);
    let front = ProtocolLayer::new("front", Arc::new(Front));
    let mut stacks = Stacks::default();
    stacks.dispatch = DispatchStack::builder().guard(front).build();
    let config = HostConfig {
        code: Coded::default().and_operator("shouts", operator).and_operator("far", Shouts),
        middleware: Middleware { code: stacks, layers: Vec::new() },
        spawners: Spawners::default().for_operator("far", Arc::new(Elsewhere)),
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(Duration::from_secs(5)).await;
    Ok(())
}
