//! The error for an invalid request.

use crate::protocol::Code;

/// A request that the protocol does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The stable code.
    pub code: Code,
    /// The message for a person.
    pub message: String,
    /// The parameter: `input[2].call_id`.
    pub param: Option<String>,
}

impl Refused {
    /// Returns the error for a malformed parameter.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Code::InvalidBody, message: message.into(), param: Some(param.into()) }
    }

    /// Returns the error for a valid parameter that this server does not support.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Code::NotSupported, message: message.into(), param: Some(param.into()) }
    }
}
