//! The failure that flows, clients and the journal share: one type everywhere.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Json;

/// The kinds that the engine itself raises; authors may add their own.
pub mod kind {
    /// An attempt or a `ctx:timeout` ran out of time. Retryable.
    pub const TIMEOUT: &str = "timeout";
    /// A worker reported that it failed.
    pub const WORKER: &str = "worker";
    /// The gate or a guard refused a dispatch.
    pub const REFUSED: &str = "refused";
    /// A result violated its schema three times.
    pub const INVALID_RESULT: &str = "invalid_result";
    /// An input violated its schema.
    pub const INVALID_INPUT: &str = "invalid_input";
    /// Nobody took the task within its `park` time. Retryable.
    pub const OPERATOR_UNAVAILABLE: &str = "operator_unavailable";
    /// The worker died with its host. Retryable.
    pub const INTERRUPTED: &str = "interrupted";
    /// A budget was used up.
    pub const BUDGET: &str = "budget";
    /// Too few members of a composite operator agreed.
    pub const QUORUM: &str = "quorum";
    /// The run, the branch or the child was canceled.
    pub const CANCELED: &str = "canceled";
    /// A limit was exceeded: CPU, memory, steps, depth, size.
    pub const LIMIT: &str = "limit";
    /// A child process failed.
    pub const PROCESS: &str = "process";
    /// A model provider failed.
    pub const MODEL: &str = "model";
    /// A model asked for a tool that does not exist.
    pub const NOT_FOUND: &str = "not_found";
    /// A person rejected it.
    pub const HUMAN_REJECTED: &str = "human_rejected";
    /// The flow's own code raised an error.
    pub const SCRIPT: &str = "script";
    /// An effect could not be applied.
    pub const EFFECT: &str = "effect";
    /// A template of the agent uses what is not there, or breaks a limit.
    pub const TEMPLATE: &str = "template";
    /// The environment of an agent cannot be provided. Retryable if a secret was unavailable.
    pub const ENVIRONMENT: &str = "environment";
}

/// The reason why a step or a run failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// A stable identifier: one of [`kind`], or the author's own.
    pub kind: String,
    /// One line for a person.
    pub message: String,
    /// The number of the step that failed.
    pub step: Option<u32>,
    /// The agent whose task failed.
    pub agent: Option<String>,
    /// The last attempt that failed.
    pub attempt: Option<u32>,
    /// True if another attempt may help.
    pub retryable: bool,
    /// Additional data.
    pub data: Option<Json>,
}

impl Failure {
    /// Returns the approximate size in bytes.
    pub fn size(&self) -> usize {
        self.kind.len() + self.message.len() + self.data.as_ref().map_or(0, Json::len)
    }

    /// Creates a failure of `kind` that is not retryable.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            step: None,
            agent: None,
            attempt: None,
            retryable: false,
            data: None,
        }
    }

    /// Marks the failure as retryable.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Sets the data.
    #[must_use]
    pub fn with_data(mut self, data: Json) -> Self {
        self.data = Some(data);
        self
    }

    /// Sets the step, the agent and the attempt that the failure comes from.
    #[must_use]
    pub fn at(mut self, step: u32, agent: Option<&str>, attempt: u32) -> Self {
        self.step = Some(step);
        self.agent = agent.map(str::to_owned);
        self.attempt = Some(attempt);
        self
    }

    /// Returns true if the failure is of `kind`.
    pub fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        match (&self.agent, self.step) {
            (Some(agent), Some(step)) => write!(f, " (agent {agent}, step {step})"),
            (Some(agent), None) => write!(f, " (agent {agent})"),
            (None, Some(step)) => write!(f, " (step {step})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
