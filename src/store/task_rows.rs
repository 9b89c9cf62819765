//! The rows of open tasks.

use serde::{Deserialize, Serialize};

/// The phase of an open task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPhase {
    /// Waiting to be taken.
    Pending,
    /// Delivered to a worker.
    Delivered,
}

impl TaskPhase {
    /// Returns the word that stores use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
        }
    }

    /// Returns the phase with a word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Pending, Self::Delivered].into_iter().find(|phase| phase.as_str() == word)
    }
}

/// A task that is executed outside the flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRow {
    /// The run.
    pub run: u64,
    /// The step.
    pub step: u32,
    /// The open attempt.
    pub attempt: u32,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The agent.
    pub agent: String,
    /// The operator's name.
    pub operator: String,
    /// The operator's kind.
    pub kind: String,
    /// The queue, for pull workers.
    pub queue: Option<String>,
    /// The phase.
    pub phase: TaskPhase,
    /// When the step was scheduled, in Unix milliseconds.
    pub scheduled_ms: u64,
    /// When the attempt was opened, in Unix milliseconds.
    pub opened_ms: u64,
    /// The worker.
    pub worker: Option<String>,
    /// The timeout of the attempt, in milliseconds of the steady clock.
    pub deadline_ms: Option<u64>,
    /// The end of the lease without a heartbeat, in milliseconds of the steady clock.
    pub lease_ms: Option<u64>,
    /// The number of times in a row that both deadlines were postponed, because the host could not
    /// receive heartbeats.
    pub graces: u32,
    /// A one-line summary for people.
    pub summary: Option<String>,
    /// The rendered prompt for the worker: the worker API's prompt, as JSON.
    pub prompt: String,
    /// The question to a senior, and the answer: JSON.
    pub question: Option<String>,
}

/// The worker that has an open task, and the time until which it has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskHold {
    /// The run.
    pub run: u64,
    /// The step.
    pub step: u32,
    /// The phase.
    pub phase: TaskPhase,
    /// The worker.
    pub worker: Option<String>,
    /// The timeout of the attempt, in milliseconds of the steady clock.
    pub deadline_ms: Option<u64>,
    /// The end of the lease without a heartbeat, in milliseconds of the steady clock.
    pub lease_ms: Option<u64>,
    /// The number of times in a row that both deadlines were postponed.
    pub graces: u32,
}

impl TaskRow {
    /// Returns who has the task.
    pub fn hold(&self) -> TaskHold {
        TaskHold {
            run: self.run,
            step: self.step,
            phase: self.phase,
            worker: self.worker.clone(),
            deadline_ms: self.deadline_ms,
            lease_ms: self.lease_ms,
            graces: self.graces,
        }
    }

    /// Sets who has the task.
    pub fn held_as(&mut self, hold: TaskHold) {
        self.phase = hold.phase;
        self.worker = hold.worker;
        self.deadline_ms = hold.deadline_ms;
        self.lease_ms = hold.lease_ms;
        self.graces = hold.graces;
    }
}

/// The selection of open tasks in a listing.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only tasks of this operator.
    pub operator: Option<String>,
    /// Only tasks of this operator kind.
    pub kind: Option<String>,
    /// Only tasks of this run.
    pub run: Option<u64>,
    /// Only tasks after this one (the cursor of the previous page).
    pub after: Option<(u64, u32)>,
    /// The maximum number of results.
    pub limit: usize,
}
