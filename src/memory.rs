//! Accounting of the memory that a host holds for all of its runs together.
//!
//! Owns one sum and its limit. Code that holds data for a run keeps a [`Share`] and updates its
//! size; code that is about to grow checks the [`Level`] first. Counting is one atomic addition,
//! without a lock. Refuses to know what is held.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use rustix::process::{Resource, getrlimit};

/// The smallest limit of a host.
const LEAST: usize = 64 << 20;

/// An account: the limit, and the memory in use.
#[derive(Debug)]
pub struct Memory {
    limit: usize,
    used: AtomicUsize,
    /// The run that may continue when nothing is left, so that one always can; 0 if none does.
    ahead: AtomicU64,
}

/// The memory that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// More than a quarter.
    Roomy,
    /// Less than a quarter: idle data is dropped.
    Tight,
    /// Nothing: growth waits.
    Full,
}

impl Memory {
    /// Returns an account of at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        let limit = limit.max(LEAST);
        Arc::new(Self { limit, used: AtomicUsize::new(0), ahead: AtomicU64::new(0) })
    }

    /// Returns an account that is never used up.
    pub fn unlimited() -> Arc<Self> {
        Self::new(usize::MAX)
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the sum of all shares, in bytes.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the current level.
    pub fn level(&self) -> Level {
        let used = self.used();
        if used >= self.limit {
            Level::Full
        } else if used >= self.limit / 4 * 3 {
            Level::Tight
        } else {
            Level::Roomy
        }
    }

    /// Returns an empty share, to be set.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: Arc::clone(self), bytes: 0 }
    }

    /// Lets a run continue although nothing is left, if no other run does; valid until the pass is
    /// dropped.
    pub fn pass(self: &Arc<Self>, run: u64) -> Option<Pass> {
        let taken = self.ahead.compare_exchange(0, run, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(|_| Pass(Arc::clone(self)))
    }
}

/// Bytes that are counted in an account; returned when dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Share {
    /// Sets the size to `bytes`.
    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.memory.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.memory.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Permission to continue when nothing is left.
#[derive(Debug)]
pub struct Pass(Arc<Memory>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.ahead.store(0, Ordering::Release);
    }
}

/// Returns the default limit: half of the machine's memory or of its control group's, or a third of
/// the address space that the process may have, whichever is least.
pub fn by_default() -> usize {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| control_group(&text));
    let space = getrlimit(Resource::As).current;
    let shares = [machine.map(|all| all / 2), group.map(|all| all / 2), space.map(|all| all / 3)];
    let least = shares.into_iter().flatten().min().unwrap_or(4 << 30);
    usize::try_from(least).unwrap_or(usize::MAX).max(LEAST)
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the smallest limit of the control group of this process and of its ancestors.
fn control_group(text: &str) -> Option<u64> {
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let legacy = text.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path);
    let (root, file, path) = match (legacy, unified) {
        (Some(path), _) => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path),
        (None, Some(path)) => ("/sys/fs/cgroup", "memory.max", path),
        (None, None) => return None,
    };
    let inner = std::path::Path::new(path.trim_start_matches('/'));
    let limits = inner.ancestors().filter_map(|group| {
        let text = fs::read_to_string(std::path::Path::new(root).join(group).join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_summed_and_given_back() {
        let memory = Memory::new(100 << 20);
        let (mut one, mut other) = (memory.share(), memory.share());
        one.set(60 << 20);
        assert_eq!(memory.level(), Level::Roomy);
        other.set(20 << 20);
        assert_eq!((memory.used(), memory.level()), (80 << 20, Level::Tight));
        other.set(50 << 20);
        assert_eq!(memory.level(), Level::Full);
        other.set(1 << 20);
        drop(one);
        assert_eq!((memory.used(), memory.level()), (1 << 20, Level::Roomy));
    }

    #[test]
    fn one_run_at_a_time_goes_on_where_nothing_is_left() {
        let memory = Memory::new(0);
        let pass = memory.pass(7);
        assert!(pass.is_some() && memory.pass(8).is_none());
        drop(pass);
        assert!(memory.pass(8).is_some());
    }

    #[test]
    fn what_a_machine_has_is_read_from_what_it_says() {
        assert_eq!(meminfo("MemTotal:       2048 kB\nMemFree: 3 kB"), Some(2 << 20));
        assert_eq!(meminfo("nothing"), None);
        assert!(by_default() >= LEAST);
    }
}
