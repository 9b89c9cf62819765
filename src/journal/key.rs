//! Where a step stands in its run: scope and index.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// A branch of a run: the path of (index of the join in its scope, number of the branch).
///
/// The main scope is the empty path. It prints as `3.1/0.2`: branch 1 of the join at index 3, and
/// in it branch 2 of the join at index 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScopePath(Arc<[(u32, u32)]>);

impl ScopePath {
    /// The scope of the flow's own function.
    pub fn main() -> Self {
        Self(Arc::from([]))
    }

    /// The scope of branch `branch` of the join that stands at `index` in this scope.
    #[must_use]
    pub fn branch(&self, index: u32, branch: u32) -> Self {
        self.0.iter().copied().chain([(index, branch)]).collect::<Vec<_>>().into()
    }

    /// The scope around this one, the index of the join there, and the number of this branch.
    pub fn outer(&self) -> Option<(Self, u32, u32)> {
        let ((index, branch), around) = self.0.split_last()?;
        Some((around.to_vec().into(), *index, *branch))
    }

    /// Whether this is the main scope.
    pub fn is_main(&self) -> bool {
        self.0.is_empty()
    }

    /// How many joins lie between the main scope and this one.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// Whether this is `other` or lies in one of its branches.
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

/// A step's identity within its run, the same at every replay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepKey {
    /// The branch that the step belongs to.
    pub scope: ScopePath,
    /// The step's position in that branch, from 0.
    pub index: u32,
}

impl StepKey {
    /// The step at `index` of `scope`.
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
