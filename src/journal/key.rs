//! The position of a step in its run: scope and index.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// A branch of a run: a path of (index of the join in its scope, number of the branch).
///
/// The main scope is the empty path. `3.1/0.2` means: branch 1 of the join at index 3, and inside
/// it branch 2 of the join at index 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScopePath(Arc<[(u32, u32)]>);

impl ScopePath {
    /// Returns the scope of the flow's main function.
    pub fn main() -> Self {
        Self(Arc::from([]))
    }

    /// Returns the scope of branch `branch` of the join at `index` in this scope.
    #[must_use]
    pub fn branch(&self, index: u32, branch: u32) -> Self {
        self.0.iter().copied().chain([(index, branch)]).collect::<Vec<_>>().into()
    }

    /// Returns the enclosing scope, the index of the join there, and the number of this branch.
    pub fn outer(&self) -> Option<(Self, u32, u32)> {
        let ((index, branch), around) = self.0.split_last()?;
        Some((around.to_vec().into(), *index, *branch))
    }

    /// Returns true for the main scope.
    pub fn is_main(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of joins between the main scope and this one.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// Returns true if this scope is `other` or nested in it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl From<Vec<(u32, u32)>> for ScopePath {
    fn from(path: Vec<(u32, u32)>) -> Self {
        Self(path.into())
    }
}

impl fmt::Display for ScopePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (index, branch)) in self.0.iter().enumerate() {
            let slash = if n == 0 { "" } else { "/" };
            write!(f, "{slash}{index}.{branch}")?;
        }
        Ok(())
    }
}

/// The identity of a step within its run, the same in every replay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepKey {
    /// The branch that the step belongs to.
    pub scope: ScopePath,
    /// The position of the step in that branch, from 0.
    pub index: u32,
}

impl StepKey {
    /// Returns the key of the step at `index` of `scope`.
    pub fn new(scope: ScopePath, index: u32) -> Self {
        Self { scope, index }
    }
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scope.is_main() {
            write!(f, "{}", self.index)
        } else {
            write!(f, "{}/{}", self.scope, self.index)
        }
    }
}
