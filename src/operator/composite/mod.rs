//! The operator that stands for others: fallback, race, quorum, round robin, and any nesting.
//!
//! Owns who its members are and whose turn it is. Refuses to call them: the engine takes a composite
//! apart, and each member's task is a step of its own.

mod backend;
mod graph;
pub(super) mod settings;

pub use graph::{GraphError, MOST_DEPTH, check};

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::flow::Rule;

/// The most members of one composite.
const MOST_MEMBERS: usize = 32;

/// Several operators under one name; its copies share whose turn it is.
#[derive(Debug, Clone)]
pub struct Composite(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    rule: Rule,
    members: Vec<Arc<str>>,
    next: AtomicUsize,
}

/// A composite that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompositeError {
    /// It has no members.
    #[error("a composite needs at least one member")]
    Empty,
    /// It has too many.
    #[error("it has {0} members; {MOST_MEMBERS} are allowed")]
    TooMany(usize),
    /// So many can never agree.
    #[error("{agree} of {members} members cannot agree")]
    Quorum {
        /// How many must agree.
        agree: u32,
        /// How many there are.
        members: usize,
    },
}

impl Composite {
    /// A composite of the operators with these names; the same may stand there twice.
    ///
    /// # Errors
    /// When there are no members or too many, or a quorum that they can never reach.
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

    /// How the members work together.
    pub fn rule(&self) -> &Rule {
        &self.0.rule
    }

    /// The names of the members.
    pub fn members(&self) -> &[Arc<str>] {
        &self.0.members
    }

    /// The place of the member whose turn it is; each call is another one's turn.
    pub fn next(&self) -> usize {
        match self.0.rule {
            Rule::RoundRobin => self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.members.len(),
            Rule::Fallback | Rule::Race | Rule::Quorum { .. } => 0,
        }
    }

    /// What it is, in one line: `quorum (2 on $.verdict) of a, b, c`.
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
