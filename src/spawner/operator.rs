//! The spawner that routes to operators by name.

use std::sync::Arc;

use async_trait::async_trait;

use super::{SpawnerAdapter, Worker};
use crate::{
    middleware::TaskDone,
    operator::{Backend, Registry, Reply, Task},
    protocol::{Failure, Json, failure::kind},
};

/// Routes each task to its operator.
#[derive(Clone)]
pub struct OperatorSpawner {
    registry: Registry,
}

impl OperatorSpawner {
    /// Returns a spawner over the operators of `registry`.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

#[async_trait]
impl SpawnerAdapter for OperatorSpawner {
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure> {
        let Some(backend) = self.registry.get(task.executor()) else {
            return Err(Failure::new(
                kind::OPERATOR_UNAVAILABLE,
                format!("there is no operator {:?}", task.executor()),
            ));
        };
        Ok(Box::new(OperatorWorker { backend: Arc::clone(backend), task, input }))
    }
}

/// A backend that executes one attempt.
struct OperatorWorker {
    backend: Arc<dyn Backend>,
    task: Arc<Task>,
    input: Json,
}

#[async_trait]
impl Worker for OperatorWorker {
    async fn join(self: Box<Self>) -> Result<Reply, Failure> {
        if self.task.lists_tools {
            let tools = self.backend.list_tools(self.task).await?;
            let tools = Json::encode(&tools).expect("tools are plain data");
            return Ok(Reply::Done(TaskDone::new(tools)));
        }
        self.backend.execute(self.task, self.input).await
    }
}
