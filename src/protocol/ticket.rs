//! One attempt of a task, by its numbers.

/// An attempt: what waits for a worker, or is with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The run's number.
    pub run: u64,
    /// The step's number.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
}
