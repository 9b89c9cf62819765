//! The position of a layer: one of three boundaries, and a class within it.

use serde::{Deserialize, Serialize};

/// The kind of operation that passes through a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Attempts that are dispatched to an operator.
    Dispatch,
    /// Operations on state.
    Store,
    /// Programs that the host starts.
    Exec,
}

impl Boundary {
    /// Returns the name in lists.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Store => "store",
            Self::Exec => "exec",
        }
    }
}

/// The class of a layer, which determines its permissions and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Only observes; outermost.
    Observer,
    /// May change the request.
    Transformer,
    /// May refuse or answer; innermost.
    Guard,
}

impl Class {
    /// Returns the name in lists.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::Transformer => "transformer",
            Self::Guard => "guard",
        }
    }
}
