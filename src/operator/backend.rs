//! The seam between the host and the code that executes a task.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Composite, Task};
use crate::{
    blueprint::Agent,
    middleware::{Short, TaskDone},
    protocol::{Failure, FunctionTool, Json, ModelDelta},
};

/// The location of an attempt's work, which determines the effect of a crash of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// In the host, without external effects: it may run ahead of the commit, and again.
    Inline,
    /// In the host or in a child of it: dispatched after the commit, interrupted by a crash.
    Host,
    /// Outside the host: dispatched after the commit, and survives a crash; the result comes
    /// through the worker API.
    Elsewhere,
}

/// The reply of a backend to an attempt.
#[derive(Debug)]
pub enum Reply {
    /// The task is done.
    Done(TaskDone),
    /// The task has ended with an incomplete result.
    Short(Box<Short>),
    /// The task was handed to a worker, which will report.
    Parked,
}

/// The provider of a model, in the words of the conventions of OpenTelemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// The provider's name: `openai`, `anthropic`.
    pub provider: &'static str,
    /// The model of agents that name none.
    pub model: Option<String>,
    /// The host and port of its server, if it has one.
    pub server: Option<(String, u16)>,
}

/// The connection to a server of tools, in the words of the conventions of OpenTelemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolServer {
    /// The name by which deliveries name it: its program or its host.
    pub name: String,
    /// The transport: `pipe`, `tcp`.
    pub transport: &'static str,
    /// The host and port of the server, if it has one.
    pub server: Option<(String, u16)>,
}

/// A configured backend that executes tasks.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Returns the kind: `process`, `human`, `echo`.
    fn kind(&self) -> &'static str;

    /// Returns the location of its work.
    fn residence(&self) -> Residence;

    /// Returns true if any node of a cluster can do its work: nothing of that stays on a machine, and
    /// nothing comes back by another way than the answer.
    fn is_portable(&self) -> bool {
        false
    }

    /// Returns true if an agent needs a worker binding to use it.
    fn requires_worker_binding(&self) -> bool {
        false
    }

    /// Returns true if an agent must name a tool to use it.
    fn requires_tool(&self) -> bool {
        false
    }

    /// Returns the timeout of one attempt, if neither the call nor its agent has one.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns true if a task that was not delivered before the host ended must be dispatched
    /// again; only for work that is pushed to a place outside the host.
    fn redelivers(&self) -> bool {
        false
    }

    /// Returns whether it asks people. Nobody fetches such a task, and its time is counted from when it
    /// is asked.
    fn asks_people(&self) -> bool {
        false
    }

    /// Returns true if its workers are programs outside the host, which may fall silent.
    fn is_leased(&self) -> bool {
        self.residence() == Residence::Elsewhere && !self.asks_people()
    }

    /// Returns the provider that it asks, if it is a model.
    fn model_source(&self) -> Option<ModelSource> {
        None
    }

    /// Returns the server of tools that it calls, if it calls one.
    fn tool_server(&self) -> Option<ToolServer> {
        None
    }

    /// Returns whether its tasks go to sessions: operators that connect and receive frames.
    fn holds_session(&self) -> bool {
        false
    }

    /// Returns the queue in which the tasks of an agent wait for a pull worker, if it uses one.
    fn queue<'a>(&'a self, _agent: &'a Agent, _name: &'a str) -> Option<&'a str> {
        None
    }

    /// Returns true if executing an attempt does nothing but offer it in that queue of the host: an
    /// attempt that a worker waits for is then leased without being executed.
    fn only_offers(&self) -> bool {
        false
    }

    /// Returns the members of a composite, which is never executed itself.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Returns true if it calls a model: then its input is a
    /// [`ModelRequest`](crate::protocol::ModelRequest), its output a
    /// [`ModelReply`](crate::protocol::ModelReply), and an agent that uses it is a loop of model
    /// calls and tool calls.
    fn is_model(&self) -> bool {
        false
    }

    /// Returns the tools that it offers to models.
    ///
    /// # Errors
    /// Fails when it has no tools to list, or is unreachable; `retryable` says whether another
    /// attempt may succeed.
    ///
    /// # Cancel safety
    /// As for [`Backend::execute`].
    async fn list_tools(&self, task: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        let message = format!("the operator {} lists no tools", task.operator);
        Err(Failure::new(crate::protocol::failure::kind::REFUSED, message))
    }

    /// Asks the model that it calls, for a program that has no task: `request` is as the input of
    /// a task, and pieces of the answer go to `heard`.
    ///
    /// # Errors
    /// Fails when it calls none, or there is no answer; `retryable` says whether another try may
    /// help.
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
    /// Returns the failure that ends the attempt; `retryable` says whether another may succeed.
    ///
    /// # Cancel safety
    /// `task.cancel` is canceled when the attempt is given up: the backend then ends what it
    /// started and returns.
    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure>;
}
