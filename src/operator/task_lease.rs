//! The lease of a task, on its way to its worker.

use std::{fmt, sync::Arc};

use crate::protocol::{TaskId, Ticket, TraceParent};

/// The lease of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskLease {
    /// The task.
    pub task: TaskId,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// The handle of the attempt.
    pub handle: String,
    /// The end of the lease without a heartbeat, in Unix milliseconds.
    pub lease_ms: u64,
    /// The span of a distributed trace that the attempt is a part of.
    pub trace: Option<TraceParent>,
}

/// Takes back the attempts whose leases reach nobody.
pub trait LeaseReturn: Send + Sync {
    /// Nobody has received the stored lease of an attempt. The attempt may have ended since.
    fn give_back(&self, attempt: Ticket);
}

/// A stored lease that its worker is still to receive. One that is dropped before goes back.
pub struct DurableLease {
    /// Absent once it is delivered.
    lease: Option<Box<TaskLease>>,
    back: Arc<dyn LeaseReturn>,
}

impl DurableLease {
    /// Returns a lease that goes to `back` if it reaches nobody.
    pub fn new(lease: Box<TaskLease>, back: Arc<dyn LeaseReturn>) -> Self {
        Self { lease: Some(lease), back }
    }

    /// Returns the handle of the attempt.
    pub fn handle(&self) -> &str {
        self.lease.as_ref().map_or("", |lease| lease.handle.as_str())
    }

    /// Returns the lease for its worker, who has it from now on.
    pub fn deliver(mut self) -> TaskLease {
        *self.lease.take().expect("only its delivery takes it")
    }
}

impl Drop for DurableLease {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            let (run, step) = (lease.task.run(), lease.task.step());
            self.back.give_back(Ticket { run, step, attempt: lease.attempt });
        }
    }
}

impl fmt::Debug for DurableLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DurableLease").field(&self.lease).finish()
    }
}
