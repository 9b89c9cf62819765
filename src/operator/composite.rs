//! The operator that combines others: fallback, race, quorum, round robin, and any nesting.
//!
//! Owns the members and the turns of round robin. Refuses to call the members: the engine expands a
//! composite, and the task of each member is a step of its own.

mod backend;
mod graph;
pub(super) mod settings;

pub use graph::{GraphError, MOST_DEPTH, check};

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::flow::Rule;

/// The maximum number of members of one composite.
const MOST_MEMBERS: usize = 32;

/// Several operators under one name; clones share the turns of round robin.
#[derive(Debug, Clone)]
pub struct Composite(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    rule: Rule,
    members: Vec<Arc<str>>,
    next: AtomicUsize,
}

/// The reason why a composite is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompositeError {
    /// The composite has no members.
    #[error("a composite needs at least one member")]
    Empty,
    /// The composite has too many members.
    #[error("it has {0} members; {MOST_MEMBERS} are allowed")]
    TooMany(usize),
    /// The quorum is larger than the number of members.
    #[error("{agree} of {members} members cannot agree")]
    Quorum {
        /// The number of members that must agree.
        agree: u32,
        /// The number of members.
        members: usize,
    },
}

impl Composite {
    /// Creates a composite of the named operators; a name may be repeated.
    ///
    /// # Errors
    /// Fails when there are no members or too many, or the quorum is unreachable.
    pub fn new(
        rule: Rule,
        members: impl IntoIterator<Item = impl Into<Arc<str>>>,
    ) -> Result<Self, CompositeError> {
        let members: Vec<Arc<str>> = members.into_iter().map(Into::into).collect();
        let count = members.len();
        match rule {
            _ if count == 0 => Err(CompositeError::Empty),
            _ if count > MOST_MEMBERS => Err(CompositeError::TooMany(count)),
            Rule::Quorum { agree, .. } if agree == 0 || agree as usize > count => {
                Err(CompositeError::Quorum { agree, members: count })
            }
            rule => Ok(Self(Arc::new(Parts { rule, members, next: AtomicUsize::new(0) }))),
        }
    }

    /// Returns the rule that combines the members.
    pub fn rule(&self) -> &Rule {
        &self.0.rule
    }

    /// Returns the names of the members.
    pub fn members(&self) -> &[Arc<str>] {
        &self.0.members
    }

    /// Returns the index of the next member; round robin advances with each call.
    pub fn next(&self) -> usize {
        match self.0.rule {
            Rule::RoundRobin => self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.members.len(),
            Rule::Fallback | Rule::Race | Rule::Quorum { .. } => 0,
        }
    }

    /// Describes the composite in one line: `quorum (2 on $.verdict) of a, b, c`.
    pub fn describe(&self) -> String {
        let rule = match &self.0.rule {
            Rule::Quorum { agree, path } => format!("quorum ({agree} on {path})"),
            rule => rule.as_str().to_owned(),
        };
        format!("{rule} of {}", self.0.members.join(", "))
    }
}

#[cfg(test)]
mod tests;
