//! The position of a step in its run: scope and index.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, OnceLock},
};

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

/// Hashes keys and scopes, which are a few numbers: several times as fast as the standard library
/// does, and as hard to predict from outside of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyHash {
    start: u64,
    by: u64,
}

impl Default for KeyHash {
    fn default() -> Self {
        static SEEDS: OnceLock<KeyHash> = OnceLock::new();
        *SEEDS.get_or_init(|| {
            let random = RandomState::new();
            Self { start: random.hash_one(0), by: random.hash_one(1) | 1 }
        })
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(*self)
    }
}

/// The hash of what was written so far.
pub(crate) struct KeyHasher(KeyHash);

impl Hasher for KeyHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let KeyHash { start, by } = &mut self.0;
        let wide = u128::from(*start ^ number) * u128::from(*by);
        *start = wide as u64 ^ (wide >> 64) as u64;
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.start
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_that_differ_a_little_have_hashes_that_differ() {
        let scope = ScopePath::main().branch(1, 2);
        let scopes = [ScopePath::main(), scope.clone(), scope.branch(2, 1), scope.branch(1, 2)];
        let keys = scopes.iter().flat_map(|scope| {
            (0..10_000).map(|index| KeyHash::default().hash_one(StepKey::new(scope.clone(), index)))
        });
        // The map looks at the upper seven bits and at the lower ones.
        let keys: Vec<u64> = keys.collect();
        let low: HashSet<u64> = keys.iter().map(|hash| hash & 0xffff).collect();
        let high: HashSet<u64> = keys.iter().map(|hash| hash >> 57).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert!(low.len() > 20_000 && high.len() == 128, "{} {}", low.len(), high.len());
    }
}
