//! The orchestrator: has operators execute, tells workflows things and asks them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OperatorId, OperatorInput, OperatorOutput, OrchError, SignalPayload, WorkflowId};

/// Puts operators together; the only one that tries anything again.
#[async_trait]
pub trait Orchestrator: Send + Sync {
    /// Has one operator execute, here or elsewhere.
    ///
    /// # Errors
    /// When there is no such operator, it was not reached, or it failed.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError>;

    /// Has several execute at the same time: one answer for each, in their order. What becomes of
    /// one changes nothing for the others.
    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>>;

    /// Tells a workflow something; returns once that is accepted, not once it is processed.
    ///
    /// # Errors
    /// When there is no such workflow, or it does not accept it.
    async fn signal(&self, target: &WorkflowId, signal: SignalPayload) -> Result<(), OrchError>;

    /// Asks a workflow something; changes nothing.
    ///
    /// # Errors
    /// When there is no such workflow, or it cannot answer.
    async fn query(&self, target: &WorkflowId, query: QueryPayload) -> Result<Value, OrchError>;
}

/// What a workflow is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueryPayload {
    /// The question's name.
    pub query_type: String,
    /// What it is about.
    pub params: Value,
}

impl QueryPayload {
    /// A question.
    pub fn new(query_type: impl Into<String>, params: Value) -> Self {
        Self { query_type: query_type.into(), params }
    }
}
