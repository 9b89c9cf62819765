//! An environment for an operator inside this process, without any boundary.

use std::sync::Arc;

use async_trait::async_trait;

use crate::protocol::{
    EnvError, Environment, EnvironmentSpec, NetworkAction, Operator, OperatorInput, OperatorOutput,
};

/// Runs an operator inside the host process. Refuses every spec that asks for more: nothing
/// separates the operator from the host, and variables of the host are never set.
pub struct Local {
    operator: Arc<dyn Operator>,
}

impl Local {
    /// Creates an environment for one operator.
    pub fn new(operator: Arc<dyn Operator>) -> Self {
        Self { operator }
    }
}

#[async_trait]
impl Environment for Local {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        if let Some(boundary) = spec.isolation.first() {
            return Err(EnvError::IsolationViolation(format!(
                "{boundary:?}: the operator runs in the host's own process; a child process has \
                 boundaries"
            )));
        }
        if let Some(credential) = spec.credentials.first() {
            return Err(EnvError::CredentialFailed(format!(
                "{}: the operator has no environment but the host's; a child process has one",
                credential.name
            )));
        }
        let policy = spec.network.as_ref();
        if policy.is_some_and(|it| it.default == NetworkAction::Deny || !it.rules.is_empty()) {
            let why = "the operator reaches what the host reaches; a child process can be closed";
            return Err(EnvError::IsolationViolation(why.to_owned()));
        }
        let limits = spec.resources.clone().unwrap_or_default();
        let wall = limits.wall;
        let others = crate::protocol::ResourceLimits { wall: None, ..limits };
        if others != crate::protocol::ResourceLimits::default() {
            let why = "the operator shares what the host uses; a child process can be limited";
            return Err(EnvError::ProvisionFailed(why.to_owned()));
        }
        let work = self.operator.execute(input);
        let Some(wall) = wall else { return Ok(work.await?) };
        match tokio::time::timeout(wall.to_std(), work).await {
            Ok(output) => Ok(output?),
            Err(_) => Err(EnvError::ResourceExceeded(format!("wall: it took more than {wall}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        Content, CredentialInjection, CredentialRef, DurationMs, ExitReason, IsolationBoundary,
        NetworkPolicy, OperatorError, ResourceLimits, SecretSource, TriggerType,
    };

    struct Echo;

    #[async_trait]
    impl Operator for Echo {
        async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
            match input.message.as_text() {
                Some("fail") => Err(OperatorError::NonRetryable("as asked".into())),
                Some("hang") => std::future::pending().await,
                _ => Ok(OperatorOutput::new(input.message, ExitReason::Complete)),
            }
        }
    }

    async fn run(text: &str, spec: &EnvironmentSpec) -> Result<OperatorOutput, EnvError> {
        let input = OperatorInput::new(Content::text(text), TriggerType::User);
        Local::new(Arc::new(Echo)).run(input, spec).await
    }

    #[tokio::test]
    async fn an_operator_is_passed_through_with_its_error() {
        let output = run("hi", &EnvironmentSpec::new()).await.unwrap();
        assert_eq!(output.message.as_text(), Some("hi"));
        let error = run("fail", &EnvironmentSpec::new()).await.unwrap_err();
        assert_eq!(error.to_string(), "operator error: non-retryable: as asked");
    }

    #[tokio::test]
    async fn its_time_is_all_that_is_limited() {
        let wall = ResourceLimits { wall: Some(DurationMs::from_millis(1)), ..Default::default() };
        let error = run("hang", &EnvironmentSpec::new().with_resources(wall)).await.unwrap_err();
        assert_eq!(error.to_string(), "resource limit exceeded: wall: it took more than 1ms");
    }

    #[tokio::test]
    async fn nothing_of_a_spec_is_left_out_in_silence() {
        let new = EnvironmentSpec::new;
        let source = SecretSource::Hardware { slot: "9a".into() };
        let goes = CredentialInjection::EnvVar { var_name: "A".into() };
        let memory = ResourceLimits { memory: Some("1Gi".into()), ..Default::default() };
        let closed = NetworkPolicy::new(NetworkAction::Deny, Vec::new());
        for (spec, text) in [
            (new().with_isolation(vec![IsolationBoundary::Process]), "isolation violation"),
            (
                new().with_credentials(vec![CredentialRef::new("a", source, goes)]),
                "credential injection failed: a",
            ),
            (new().with_resources(memory), "provisioning failed"),
            (new().with_network(closed), "isolation violation"),
        ] {
            let error = run("hi", &spec).await.unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
