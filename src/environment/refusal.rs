//! The refusal of a part of an environment.

use std::fmt;

/// A part of an environment that this machine cannot provide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The part: `resources.memory`.
    pub what: String,
    /// The reason.
    pub reason: String,
    /// The change that would help.
    pub helps: String,
}

impl Refusal {
    pub(super) fn new(
        what: impl Into<String>,
        reason: impl Into<String>,
        helps: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), reason: reason.into(), helps: helps.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` cannot be given here: {}; {}", self.what, self.reason, self.helps)
    }
}
