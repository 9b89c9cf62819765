//! The middleware traits with hook-style method names: `on_dispatch`, `on_read`, `on_write`,
//! `on_exec`.

use async_trait::async_trait;
use serde_json::Value;

use super::{
    DispatchMiddleware, DispatchNext, ExecMiddleware, ExecNext, StoreMiddleware, StoreReadNext,
    StoreWriteNext,
};
use crate::protocol::{
    EnvError, Operator, OperatorError, OperatorId, OperatorInput, OperatorOutput, OrchError, Scope,
    StateError, environment::EnvironmentSpec, state::StoreOptions,
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

/// Middleware around the execution of an operator, whatever environment it is executed in: with the
/// operator's errors, without the environment's specification.
#[async_trait]
pub trait OperatorHook: Send + Sync {
    /// Handles an execution; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn on_exec(
        &self,
        input: OperatorInput,
        next: &dyn Operator,
    ) -> Result<OperatorOutput, OperatorError>;
}

/// Adapts an [`OperatorHook`] to an [`ExecMiddleware`]. An error of the environment reaches the hook
/// as [`OperatorError::Other`]; returned as it is, it is the environment's error again.
pub struct InAnyEnvironment<H>(
    /// The hook.
    pub H,
);

#[async_trait]
impl<H: OperatorHook> ExecMiddleware for InAnyEnvironment<H> {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        self.0.on_exec(input, &Within { spec, next }).await.map_err(|error| match error {
            OperatorError::Other(source) => match source.downcast::<EnvError>() {
                Ok(error) => *error,
                Err(source) => EnvError::OperatorError(OperatorError::Other(source)),
            },
            error => EnvError::OperatorError(error),
        })
    }
}

/// The remaining stack of an execution, as an operator.
struct Within<'a> {
    spec: &'a EnvironmentSpec,
    next: &'a dyn ExecNext,
}

#[async_trait]
impl Operator for Within<'_> {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        self.next.run(input, self.spec).await.map_err(|error| match error {
            EnvError::OperatorError(error) => error,
            error => OperatorError::Other(Box::new(error)),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Content, ExitReason, TriggerType};

    /// Answers what it is asked, or fails within the environment.
    struct Machine(bool);

    #[async_trait]
    impl ExecNext for Machine {
        async fn run(
            &self,
            input: OperatorInput,
            _: &EnvironmentSpec,
        ) -> Result<OperatorOutput, EnvError> {
            match self.0 {
                true => Ok(OperatorOutput::new(input.message, ExitReason::Complete)),
                false => Err(EnvError::ProvisionFailed("no room".into())),
            }
        }
    }

    /// Changes what is asked, and refuses `no`.
    struct Hook;

    #[async_trait]
    impl OperatorHook for Hook {
        async fn on_exec(
            &self,
            mut input: OperatorInput,
            next: &dyn Operator,
        ) -> Result<OperatorOutput, OperatorError> {
            if input.message.as_text() == Some("no") {
                return Err(OperatorError::NonRetryable("refused".into()));
            }
            input.message = Content::text("changed");
            next.execute(input).await
        }
    }

    #[test]
    fn a_hook_of_an_operator_stands_around_any_environment_with_its_own_errors() {
        let stack =
            super::super::ExecStack::builder().guard(std::sync::Arc::new(InAnyEnvironment(Hook)));
        let stack = stack.build();
        let run = async |text: &str, works: bool| {
            let input = OperatorInput::new(Content::text(text), TriggerType::Task);
            stack.run_with(input, &EnvironmentSpec::default(), &Machine(works)).await
        };
        let run = |text: &str, works: bool| futures::executor::block_on(run(text, works));
        assert_eq!(run("yes", true).unwrap().message.as_text(), Some("changed"));
        let error = run("no", true).unwrap_err();
        assert!(
            matches!(error, EnvError::OperatorError(OperatorError::NonRetryable(_))),
            "{error}"
        );
        let error = run("yes", false).unwrap_err();
        assert!(matches!(error, EnvError::ProvisionFailed(_)), "as it was: {error}");
    }
}
