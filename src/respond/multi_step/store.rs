//! The interface for the storage of chains.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::StoreError;
use crate::protocol::{ChainStep, NextAction, RecordedStep, StepDescriptor};

/// Stores the chains of responses and returns their next actions.
///
/// A scope is a separate chain: `None` is the one that the user sees, a step's id the nested loop
/// of that step. The implementation chooses the format of ids.
#[async_trait]
pub trait MultiStepStore: Send + Sync {
    /// Returns the next action for the current chain of a scope. Changes nothing.
    ///
    /// # Errors
    /// Fails when the chain cannot be read.
    async fn next_action_for(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<NextAction, StoreError>;

    /// Records a pending step after `prev_step`, and assigns its number in the same write. If the
    /// scope has already recorded the same call after the same model call, returns that step.
    ///
    /// # Errors
    /// Fails when the response, the scope or `prev_step` does not exist, or nothing can be written.
    async fn record_step(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
        prev_step: Option<&str>,
        descriptor: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError>;

    /// Marks a step as being executed. Idempotent.
    ///
    /// # Errors
    /// Fails when the step does not exist or has ended.
    async fn mark_step_processing(&self, step_id: &str) -> Result<(), StoreError>;

    /// Opens another attempt of a step whose executor is gone. Does nothing by default.
    ///
    /// # Errors
    /// Fails when the step does not exist or has ended.
    async fn retry_step(&self, step_id: &str) -> Result<(), StoreError> {
        let _ = step_id;
        Ok(())
    }

    /// Returns the descriptor of a step. Without it, which is the default, a step that a crash left
    /// open is not executed again but fails.
    ///
    /// # Errors
    /// Fails when the step does not exist.
    async fn descriptor_of(&self, step_id: &str) -> Result<Option<StepDescriptor>, StoreError> {
        let _ = step_id;
        Ok(None)
    }

    /// Ends a step with a value.
    ///
    /// # Errors
    /// Fails when the step does not exist or has ended.
    async fn complete_step(&self, step_id: &str, payload: &Value) -> Result<(), StoreError>;

    /// Ends a step with an error.
    ///
    /// # Errors
    /// Fails when the step does not exist or has ended.
    async fn fail_step(&self, step_id: &str, error: &Value) -> Result<(), StoreError>;

    /// Cancels a step. By default the step fails, with the type `canceled`.
    ///
    /// # Errors
    /// Fails when the step does not exist or has ended.
    async fn cancel_step(&self, step_id: &str, reason: &str) -> Result<(), StoreError> {
        self.fail_step(step_id, &json!({ "type": "canceled", "message": reason })).await
    }

    /// Returns the steps of one scope, ordered by number.
    ///
    /// # Errors
    /// Fails when the response or the scope does not exist.
    async fn list_chain(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<Vec<ChainStep>, StoreError>;

    /// Returns the whole response in the format of Open Responses.
    ///
    /// # Errors
    /// Fails when it does not exist.
    async fn assemble_response(&self, request_id: &str) -> Result<Value, StoreError>;
}
