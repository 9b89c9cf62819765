//! One dispatch and what comes of it.

use std::{any::Any, fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    journal::Usage,
    protocol::{Effect, Failure, Json, RunId, TaskId},
};

/// One attempt on its way to an operator.
pub struct Dispatch {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// The agent whose task it is.
    pub agent: String,
    /// The operator that is to execute it.
    pub operator: String,
    /// What the agent is given.
    pub input: Json,
    /// Who started the run: a token's subject.
    pub principal: String,
    /// What the terminal needs besides; layers pass it on unread.
    pub payload: Arc<dyn Any + Send + Sync>,
}

/// What came of a dispatch that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Dispatched {
    /// It was executed.
    Done(TaskDone),
    /// Its worker lives elsewhere and reports through the worker API.
    Parked,
}

/// An executed task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDone {
    /// Its value.
    pub output: Json,
    /// What it used, if that was reported.
    pub usage: Option<Usage>,
    /// What it wants done.
    pub effects: Vec<Effect>,
}

/// What lies below the last layer.
#[async_trait]
pub trait Terminal: Send + Sync {
    /// Hands the dispatch to its operator.
    ///
    /// # Errors
    /// The attempt's failure.
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure>;
}

impl TaskDone {
    /// A value that used and wants nothing.
    pub fn new(output: Json) -> Self {
        Self { output, usage: None, effects: Vec::new() }
    }
}

/// Without the input: a log may show a dispatch, never what it carries.
impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch")
            .field("run", &self.run.to_string())
            .field("task", &self.task.to_string())
            .field("attempt", &self.attempt)
            .field("epoch", &self.epoch)
            .field("agent", &self.agent)
            .field("operator", &self.operator)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}
