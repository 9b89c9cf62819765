//! The messages that a run sends through the outbox: to another run, or to a store in code.

use serde::{Deserialize, Serialize};

/// A message from a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Errand {
    /// A signal.
    Signal {
        /// The signal's name.
        name: String,
        /// JSON.
        payload: String,
    },
    /// The sender no longer needs the receiver, which it called.
    Cancel {
        /// The sender's id.
        by: String,
        /// The reason.
        reason: String,
    },
    /// A change of a scope that somebody else keeps.
    Change {
        /// The scope.
        scope: String,
        /// A [`ForeignChange`](super::ForeignChange), as JSON.
        payload: String,
    },
}

impl Errand {
    /// Returns true for a change of a scope that somebody else keeps.
    pub fn is_change(&self) -> bool {
        self.change_of().is_some()
    }

    /// Returns the scope and the payload of such a change.
    pub fn change_of(&self) -> Option<(&str, &str)> {
        match self {
            Self::Change { scope, payload } => Some((scope, payload)),
            Self::Signal { .. } | Self::Cancel { .. } => None,
        }
    }
}
