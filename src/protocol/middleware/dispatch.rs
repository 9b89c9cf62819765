//! Around a dispatch.

use std::sync::Arc;

use async_trait::async_trait;

use super::builder::builder;
use crate::protocol::{OperatorId, OperatorInput, OperatorOutput, OrchError};

/// The rest of the way of a dispatch.
#[async_trait]
pub trait DispatchNext: Send + Sync {
    /// Goes on.
    ///
    /// # Errors
    /// A refusal further on, or the operator's failure.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError>;
}

/// Stands around a dispatch.
#[async_trait]
pub trait DispatchMiddleware: Send + Sync {
    /// Passes a dispatch on, or not.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError>;
}

/// What every dispatch passes through.
#[derive(Default)]
pub struct DispatchStack {
    layers: Vec<Arc<dyn DispatchMiddleware>>,
}

builder!(
    /// Collects what a [`DispatchStack`] has.
    DispatchStackBuilder,
    DispatchStack,
    DispatchMiddleware
);

impl DispatchStack {
    /// Takes a dispatch through the stack to `terminal`; an empty stack is its terminal.
    ///
    /// # Errors
    /// A refusal on the way, or the terminal's failure.
    pub async fn dispatch_with(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        terminal: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        Rest { layers: &self.layers, terminal }.dispatch(operator, input).await
    }
}

struct Rest<'a> {
    layers: &'a [Arc<dyn DispatchMiddleware>],
    terminal: &'a dyn DispatchNext,
}

#[async_trait]
impl DispatchNext for Rest<'_> {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        match self.layers.split_first() {
            None => self.terminal.dispatch(operator, input).await,
            Some((layer, layers)) => {
                let next = Self { layers, terminal: self.terminal };
                layer.dispatch(operator, input, &next).await
            }
        }
    }
}
