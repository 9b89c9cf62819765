//! The errors of the protocol traits, one enum per trait.
//!
//! Their texts are part of the vocabulary that operators are written against, so they do not follow
//! this crate's own wording.

use thiserror::Error;

/// Any error, with its sources.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// The reason why an operator gave no output.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The model provider failed.
    #[error("model error: {0}")]
    Model(String),
    /// A sub-operator or tool failed.
    #[error("sub-dispatch error in {operator}: {message}")]
    SubDispatch {
        /// The sub-operator or tool.
        operator: String,
        /// The error message.
        message: String,
    },
    /// The prompt could not be assembled.
    #[error("context assembly failed: {0}")]
    ContextAssembly(String),
    /// Another attempt may succeed.
    #[error("retryable: {0}")]
    Retryable(String),
    /// Another attempt would fail the same way.
    #[error("non-retryable: {0}")]
    NonRetryable(String),
    /// Anything else.
    #[error("{0}")]
    Other(#[from] Source),
}

/// The reason why a call of an orchestrator failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OrchError {
    /// No operator has that name.
    #[error("operator not found: {0}")]
    OperatorNotFound(String),
    /// No workflow has that id.
    #[error("workflow not found: {0}")]
    WorkflowNotFound(String),
    /// The dispatch did not reach its operator.
    #[error("dispatch failed: {0}")]
    DispatchFailed(String),
    /// The signal was not accepted.
    #[error("signal delivery failed: {0}")]
    SignalFailed(String),
    /// The operator itself failed.
    #[error("operator error: {0}")]
    OperatorError(#[from] OperatorError),
    /// Anything else.
    #[error("{0}")]
    Other(#[from] Source),
}

/// The reason why state was not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The scope has no such key.
    #[error("not found: {scope}/{key}")]
    NotFound {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
    },
    /// The value was not written.
    #[error("write failed: {0}")]
    WriteFailed(String),
    /// The value could not be serialized or deserialized.
    #[error("serialization error: {0}")]
    Serialization(String),
    /// Anything else.
    #[error("{0}")]
    Other(#[from] Source),
}

/// The reason why an environment did not run an operator.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EnvError {
    /// The environment could not be provisioned.
    #[error("provisioning failed: {0}")]
    ProvisionFailed(String),
    /// A boundary was crossed, or this machine cannot provide it.
    #[error("isolation violation: {0}")]
    IsolationViolation(String),
    /// A secret could not be injected.
    #[error("credential injection failed: {0}")]
    CredentialFailed(String),
    /// A limit was exceeded.
    #[error("resource limit exceeded: {0}")]
    ResourceExceeded(String),
    /// The operator inside failed.
    #[error("operator error: {0}")]
    OperatorError(#[from] OperatorError),
    /// Anything else.
    #[error("{0}")]
    Other(#[from] Source),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_vocabularys() {
        let sub = OperatorError::SubDispatch { operator: "grep".into(), message: "gone".into() };
        assert_eq!(sub.to_string(), "sub-dispatch error in grep: gone");
        assert_eq!(OperatorError::NonRetryable("no".into()).to_string(), "non-retryable: no");
        assert_eq!(
            OrchError::from(sub).to_string(),
            "operator error: sub-dispatch error in grep: gone"
        );
        assert_eq!(
            OrchError::SignalFailed("closed".into()).to_string(),
            "signal delivery failed: closed"
        );
        let missing = StateError::NotFound { scope: "global".into(), key: "k".into() };
        assert_eq!(missing.to_string(), "not found: global/k");
        assert_eq!(
            EnvError::ResourceExceeded("cpu".into()).to_string(),
            "resource limit exceeded: cpu"
        );
    }

    #[test]
    fn any_error_can_be_carried() {
        let error: OperatorError = Source::from("odd").into();
        assert_eq!(error.to_string(), "odd");
    }
}
