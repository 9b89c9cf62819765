//! Middleware around an environment.

use std::sync::Arc;

use async_trait::async_trait;

use super::builder::builder;
use crate::protocol::{EnvError, OperatorInput, OperatorOutput, environment::EnvironmentSpec};

/// The remaining stack of an execution.
#[async_trait]
pub trait ExecNext: Send + Sync {
    /// Calls the remaining stack.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or the environment fails.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError>;
}

/// Wraps an execution.
#[async_trait]
pub trait ExecMiddleware: Send + Sync {
    /// Handles an execution; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError>;
}

/// The middleware of every execution.
#[derive(Default)]
pub struct ExecStack {
    layers: Vec<Arc<dyn ExecMiddleware>>,
}

builder!(
    /// Builds an [`ExecStack`].
    ExecStackBuilder,
    ExecStack,
    ExecMiddleware
);

impl ExecStack {
    /// Sends an execution through the stack to `terminal`; an empty stack calls `terminal`
    /// directly.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the error of `terminal`.
    pub async fn run_with(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        terminal: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        Rest { layers: &self.layers, terminal }.run(input, spec).await
    }
}

struct Rest<'a> {
    layers: &'a [Arc<dyn ExecMiddleware>],
    terminal: &'a dyn ExecNext,
}

#[async_trait]
impl ExecNext for Rest<'_> {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        match self.layers.split_first() {
            None => self.terminal.run(input, spec).await,
            Some((layer, layers)) => {
                let next = Self { layers, terminal: self.terminal };
                layer.run(input, spec, &next).await
            }
        }
    }
}
