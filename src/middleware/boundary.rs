//! Where layers stand: the three boundaries, and the classes within each.

use serde::{Deserialize, Serialize};

/// What passes through a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Attempts on their way to an operator.
    Dispatch,
    /// Operations on state.
    Store,
    /// Programs that are started.
    Exec,
}

impl Boundary {
    /// The word that lists use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Store => "store",
            Self::Exec => "exec",
        }
    }
}

/// What a layer may do, which decides where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Watches, outermost.
    Observer,
    /// Changes what passes.
    Transformer,
    /// Refuses or answers, innermost.
    Guard,
}

impl Class {
    /// The word that lists use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::Transformer => "transformer",
            Self::Guard => "guard",
        }
    }
}
