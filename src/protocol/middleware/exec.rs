//! Around an environment.

use std::sync::Arc;

use async_trait::async_trait;

use super::builder::builder;
use crate::protocol::{EnvError, OperatorInput, OperatorOutput, environment::EnvironmentSpec};

/// The rest of the way of an execution.
#[async_trait]
pub trait ExecNext: Send + Sync {
    /// Goes on.
    ///
    /// # Errors
    /// A refusal further on, or the environment's failure.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError>;
}

/// Stands around an environment.
#[async_trait]
pub trait ExecMiddleware: Send + Sync {
    /// Passes an execution on, or not.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError>;
}

/// What every execution passes through.
#[derive(Default)]
pub struct ExecStack {
    layers: Vec<Arc<dyn ExecMiddleware>>,
}

builder!(
    /// Collects what an [`ExecStack`] has.
    ExecStackBuilder,
    ExecStack,
    ExecMiddleware
);

impl ExecStack {
    /// Takes an execution through the stack to `terminal`; an empty stack is its terminal.
    ///
    /// # Errors
    /// A refusal on the way, or the terminal's failure.
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
