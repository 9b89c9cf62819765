//! A person whom somebody else has identified.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of groups that are read of a header or a token.
pub(super) const MOST_GROUPS: usize = 256;

/// A person whom a proxy or a provider has identified.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Person {
    /// The name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl fmt::Debug for Person {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Person({})", self.name)
    }
}
