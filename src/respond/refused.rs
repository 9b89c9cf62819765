//! Why a request is not one.

/// A request that the protocol does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// A stable word.
    pub code: &'static str,
    /// What is wrong, for a person.
    pub message: String,
    /// The parameter: `input[2].call_id`.
    pub param: Option<String>,
}

impl Refused {
    /// A parameter that has another shape than it must.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: "invalid_body", message: message.into(), param: Some(param.into()) }
    }

    /// A parameter that is right, and that this server has no way to honour.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: "not_supported", message: message.into(), param: Some(param.into()) }
    }
}
