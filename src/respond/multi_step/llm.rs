//! The model of a configured operator, for a loop of one's own.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{ExecutorError, Model};
use crate::{
    operator::{Backend, Declared, Registry},
    protocol::{Json, ModelDelta},
    respond::response::Used,
};

/// Asks the model of an operator of kind `llm`, as an agent would.
///
/// A request is a [`ModelRequest`](crate::protocol::ModelRequest), an answer a
/// [`ModelReply`](crate::protocol::ModelReply) with its `usage` in the shape of Open Responses.
#[derive(Clone)]
pub struct LlmModel {
    backend: Arc<dyn Backend>,
}

/// There is no such model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no operator that asks a model")]
pub struct NoModel(pub String);

impl LlmModel {
    /// The model of an operator that a configuration declares.
    ///
    /// # Errors
    /// Fails when it declares no such operator, or one that asks no model itself.
    pub fn declared(operators: &Declared, name: &str) -> Result<Self, NoModel> {
        Self::of(&operators.alone(), name)
    }

    /// The model of an operator of a host.
    ///
    /// # Errors
    /// Fails when there is no such operator, or it asks no model itself.
    pub fn of(operators: &Registry, name: &str) -> Result<Self, NoModel> {
        let found = operators.get(name).filter(|backend| backend.is_model());
        let backend = found.ok_or_else(|| NoModel(name.to_owned()))?;
        Ok(Self { backend: Arc::clone(backend) })
    }
}

#[async_trait]
impl Model for LlmModel {
    async fn call(
        &self,
        request: &Value,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError> {
        let done = self.backend.ask(&Json::from(request), heard).await;
        let done = done.map_err(|failure| ExecutorError::ExecutionError(failure.to_string()))?;
        let mut answer = done.output.to_value();
        let mut used = Used::default();
        done.usage.iter().for_each(|usage| used.add(usage));
        answer["usage"] = used.shown();
        Ok(answer)
    }
}
