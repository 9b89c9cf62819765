//! The seam between the host and whoever executes a task.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Composite, Task};
use crate::{
    blueprint::Agent,
    middleware::{Short, TaskDone},
    protocol::{Failure, FunctionTool, Json, ModelDelta},
};

/// Where the work of an attempt lives, which decides what a crash of the host means for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// In the host, without effects outside: it may run ahead of the commit, and again.
    Inline,
    /// In the host or in a child of it: dispatched after the commit, interrupted by a crash.
    Host,
    /// Somewhere else: dispatched after the commit, outlives the host; its result comes through
    /// the worker API.
    Elsewhere,
}

/// What a backend says of an attempt.
#[derive(Debug)]
pub enum Reply {
    /// It is done.
    Done(TaskDone),
    /// It is over, and fell short of what was asked.
    Short(Box<Short>),
    /// It is with somebody else now, who will report.
    Parked,
}

/// A configured way to get tasks done.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The kind: `process`, `human`, `echo`.
    fn kind(&self) -> &'static str;

    /// Where its work lives.
    fn residence(&self) -> Residence;

    /// Whether an agent needs a worker binding to use it.
    fn requires_worker_binding(&self) -> bool {
        false
    }

    /// Whether an agent needs to name a tool to use it.
    fn requires_tool(&self) -> bool {
        false
    }

    /// Time for one attempt, where neither the call nor its agent says.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Whether a task that it did not deliver before the host ended has to be given to it again;
    /// only for work that lives elsewhere and is pushed there.
    fn redelivers(&self) -> bool {
        false
    }

    /// The queue that tasks of an agent wait in for a pull worker, if that is how it works.
    fn queue<'a>(&'a self, _agent: &'a Agent, _name: &'a str) -> Option<&'a str> {
        None
    }

    /// Who its members are, if it only stands for others; then it is never executed itself.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Whether it calls a model: then its input is a [`ModelRequest`](crate::protocol::ModelRequest),
    /// its output a [`ModelReply`](crate::protocol::ModelReply), and an agent that uses it is a loop
    /// of such calls and of calls of tools.
    fn is_model(&self) -> bool {
        false
    }

    /// The tools that it has, for models that may call them.
    ///
    /// # Errors
    /// When it has none to list, or cannot be asked; `retryable` says whether another attempt may
    /// help.
    ///
    /// # Cancel safety
    /// As of [`Backend::execute`].
    async fn list_tools(&self, task: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        let message = format!("the operator {} lists no tools", task.operator);
        Err(Failure::new(crate::protocol::failure::kind::REFUSED, message))
    }

    /// Asks the model that it calls, for a program that has no task: `request` is as the input of
    /// a task, and pieces of the answer go to `heard`.
    ///
    /// # Errors
    /// When it calls none, or there is no answer; `retryable` says whether another try may help.
    ///
    /// # Cancel safety
    /// May be dropped; what was begun ends.
    async fn ask(
        &self,
        request: &Json,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<TaskDone, Failure> {
        let _ = (request, heard);
        let message = format!("an operator of kind {} calls no model", self.kind());
        Err(Failure::new(crate::protocol::failure::kind::REFUSED, message))
    }

    /// Executes one attempt. May be called again for the same task, with a higher attempt.
    ///
    /// # Errors
    /// The failure that ends the attempt; `retryable` says whether another may help.
    ///
    /// # Cancel safety
    /// `task.cancel` is canceled when the attempt is given up: the backend then ends what it
    /// started and returns.
    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure>;
}
