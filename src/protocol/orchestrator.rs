//! The orchestrator trait: dispatches to operators, signals and queries workflows.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OperatorId, OperatorInput, OperatorOutput, OrchError, SignalPayload, WorkflowId};

/// Composes operators; the only component that retries.
#[async_trait]
pub trait Orchestrator: Send + Sync {
    /// Executes one operator, here or elsewhere.
    ///
    /// # Errors
    /// Fails when there is no such operator, it is unreachable, or it fails.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError>;

    /// Executes several operators concurrently, and returns one result for each, in order. The
    /// outcomes are independent.
    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>>;

    /// Sends a signal to a workflow; returns once the signal is accepted, before it is processed.
    ///
    /// # Errors
    /// Fails when there is no such workflow, or it rejects the signal.
    async fn signal(&self, target: &WorkflowId, signal: SignalPayload) -> Result<(), OrchError>;

    /// Queries a workflow; changes nothing.
    ///
    /// # Errors
    /// Fails when there is no such workflow, or it cannot answer.
    async fn query(&self, target: &WorkflowId, query: QueryPayload) -> Result<Value, OrchError>;
}

/// A query of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueryPayload {
    /// The name of the query.
    pub query_type: String,
    /// The parameters.
    pub params: Value,
}

impl QueryPayload {
    /// Creates a query.
    pub fn new(query_type: impl Into<String>, params: Value) -> Self {
        Self { query_type: query_type.into(), params }
    }
}
