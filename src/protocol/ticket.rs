//! The identity of one attempt of a task.

/// An attempt that waits for a worker or is held by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The run's number.
    pub run: u64,
    /// The step's number.
    pub step: u32,
    /// The attempt's number, from 1.
    pub attempt: u32,
}
