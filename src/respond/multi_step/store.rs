//! The seam to whoever keeps chains.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::StoreError;
use crate::protocol::{ChainStep, NextAction, RecordedStep, StepDescriptor};

/// Keeps the chains of responses, and says what follows from them.
///
/// A scope is a chain of its own: `None` is what the user sees, a step's id the loop below that
/// step. Ids are texts of the implementor's own.
#[async_trait]
pub trait MultiStepStore: Send + Sync {
    /// What follows from a scope's chain as it stands. Changes nothing.
    ///
    /// # Errors
    /// When the chain cannot be read.
    async fn next_action_for(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<NextAction, StoreError>;

    /// Records a pending step behind `prev_step`; its number is given in the same write. A call
    /// that the scope has already recorded after the same call of the model is that step.
    ///
    /// # Errors
    /// When the response, the scope or `prev_step` is not there, or nothing can be written.
    async fn record_step(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
        prev_step: Option<&str>,
        descriptor: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError>;

    /// A step is being executed; may be said twice.
    ///
    /// # Errors
    /// When there is no such step, or it has ended.
    async fn mark_step_processing(&self, step_id: &str) -> Result<(), StoreError>;

    /// A step whose executor is gone is to be executed again, as another attempt, where the store
    /// counts them.
    ///
    /// # Errors
    /// When there is no such step, or it has ended.
    async fn retry_step(&self, step_id: &str) -> Result<(), StoreError> {
        let _ = step_id;
        Ok(())
    }

    /// What a step asks. A store that does not give it back has no step executed again after a
    /// crash: a step that was open then fails.
    ///
    /// # Errors
    /// When there is no such step.
    async fn descriptor_of(&self, step_id: &str) -> Result<Option<StepDescriptor>, StoreError> {
        let _ = step_id;
        Ok(None)
    }

    /// A step ends with a value.
    ///
    /// # Errors
    /// When there is no such step, or it has ended.
    async fn complete_step(&self, step_id: &str, payload: &Value) -> Result<(), StoreError>;

    /// A step ends with an error.
    ///
    /// # Errors
    /// When there is no such step, or it has ended.
    async fn fail_step(&self, step_id: &str, error: &Value) -> Result<(), StoreError>;

    /// A step is given up: it fails as canceled, where the store has no state of its own for that.
    ///
    /// # Errors
    /// When there is no such step, or it has ended.
    async fn cancel_step(&self, step_id: &str, reason: &str) -> Result<(), StoreError> {
        self.fail_step(step_id, &json!({ "type": "canceled", "message": reason })).await
    }

    /// The steps of one scope, in the order of their numbers.
    ///
    /// # Errors
    /// When the response or the scope is not there.
    async fn list_chain(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<Vec<ChainStep>, StoreError>;

    /// The response as a whole, in the shape of Open Responses.
    ///
    /// # Errors
    /// When it is not there.
    async fn assemble_response(&self, request_id: &str) -> Result<Value, StoreError>;
}
