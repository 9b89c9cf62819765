//! The middleware traits with hook-style method names: `on_dispatch`, `on_read`, `on_write`,
//! `on_exec`.

use async_trait::async_trait;
use serde_json::Value;

use super::{
    DispatchMiddleware, DispatchNext, ExecMiddleware, ExecNext, StoreMiddleware, StoreReadNext,
    StoreWriteNext,
};
use crate::protocol::{
    EnvError, OperatorId, OperatorInput, OperatorOutput, OrchError, Scope, StateError,
    environment::EnvironmentSpec, state::StoreOptions,
};

/// A [`DispatchMiddleware`] with a hook-style name.
#[async_trait]
pub trait DispatchHook: Send + Sync {
    /// Handles a dispatch; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn on_dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError>;
}

/// A [`StoreMiddleware`] with hook-style names.
#[async_trait]
pub trait StoreHook: Send + Sync {
    /// Handles a read; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn on_read(
        &self,
        scope: &Scope,
        key: &str,
        next: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        next.read(scope, key).await
    }

    /// Handles a write; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn on_write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        next.write(scope, key, value, options).await
    }
}

/// An [`ExecMiddleware`] with a hook-style name.
#[async_trait]
pub trait ExecHook: Send + Sync {
    /// Handles an execution; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn on_exec(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError>;
}

/// Adapts a hook to the middleware trait.
pub struct ByHook<H>(
    /// The hook.
    pub H,
);

#[async_trait]
impl<H: DispatchHook> DispatchMiddleware for ByHook<H> {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        self.0.on_dispatch(operator, input, next).await
    }
}

#[async_trait]
impl<H: StoreHook> StoreMiddleware for ByHook<H> {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        self.0.on_write(scope, key, value, options, next).await
    }

    async fn read(
        &self,
        scope: &Scope,
        key: &str,
        next: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        self.0.on_read(scope, key, next).await
    }
}

#[async_trait]
impl<H: ExecHook> ExecMiddleware for ByHook<H> {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        self.0.on_exec(input, spec, next).await
    }
}
