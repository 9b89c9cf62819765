//! Middleware around a dispatch.

use std::sync::Arc;

use async_trait::async_trait;

use super::builder::builder;
use crate::protocol::{OperatorId, OperatorInput, OperatorOutput, OrchError};

/// The remaining stack of a dispatch.
#[async_trait]
pub trait DispatchNext: Send + Sync {
    /// Calls the remaining stack.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or the operator fails.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError>;
}

/// Wraps a dispatch.
#[async_trait]
pub trait DispatchMiddleware: Send + Sync {
    /// Handles a dispatch; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError>;
}

/// The middleware of every dispatch.
#[derive(Default)]
pub struct DispatchStack {
    layers: Vec<Arc<dyn DispatchMiddleware>>,
}

builder!(
    /// Builds a [`DispatchStack`].
    DispatchStackBuilder,
    DispatchStack,
    DispatchMiddleware
);

impl DispatchStack {
    /// Sends a dispatch through the stack to `terminal`; an empty stack calls `terminal` directly.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the error of `terminal`.
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
