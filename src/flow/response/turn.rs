//! The steps that a loop starts, its stops, and the questions that it asks a judge.

use serde_json::Value;

use super::settings::Face;
use crate::{
    journal::Usage,
    protocol::{ExitReason, Failure, FunctionTool, Json, ModelEnd, ModelReply, failure::kind},
};

/// The maximum number of calls in one answer.
const BATCH: usize = 128;

/// The next action of a loop.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopAction {
    /// Wait until a step ends.
    Wait,
    /// Start these steps in parallel, at the next places in order, then ask for another turn.
    Begin(Vec<Begin>),
    /// The loop is done.
    Done {
        /// The value.
        value: Json,
        /// The reason why it ended there.
        end: ModelEnd,
    },
    /// The loop stops early.
    Stop(Box<LoopStop>),
}

/// A step that a loop starts.
#[derive(Debug, Clone, PartialEq)]
pub enum Begin {
    /// Lists the tools of a server. Yields a list of [`FunctionTool`]s.
    List {
        /// The server's operator.
        server: String,
    },
    /// Asks the model. Yields a [`ModelReply`].
    Ask {
        /// The number of the turn, from 1.
        turn: u32,
    },
    /// Asks the model for a summary. Yields a [`ModelReply`].
    Compact {
        /// The turn after which it is asked.
        turn: u32,
    },
    /// Writes a turn that compaction will remove to state.
    Flush {
        /// The number of the turn, from 1.
        turn: u32,
    },
    /// Reads the conversation of the session. Yields a [`Remembered`](super::Remembered), or null.
    Recall,
    /// Writes the conversation of the session.
    Keep,
    /// Asks a person whether a tool may be called. Yields `{"approved": …}`.
    Approve(Call),
    /// Calls a tool.
    Call(Call),
    /// Records a call that fails at its start. Nothing is executed.
    Refuse(Call, Failure),
}

/// The reason why a loop stops early.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopStop {
    /// The reason in the protocol's vocabulary.
    pub exit: ExitReason,
    /// The failure for the caller.
    pub failure: Failure,
}

/// The totals of a loop so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// The number of requests to the model.
    pub turns: u32,
    /// The number of tool calls started.
    pub calls: u32,
    /// The reported usage of everything that has ended.
    pub used: Usage,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The provider's id of the call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// The arguments: an object with defaults applied. For a refused call, the model's text.
    pub arguments: Json,
    /// True if it may be executed in parallel with others.
    pub parallel_safe: bool,
}

/// Decisions that a loop leaves to its caller.
pub trait Judge {
    /// Returns the loop's view of a server's tools.
    fn faces(&self, server: &str, tools: Vec<FunctionTool>) -> Vec<Face>;

    /// Validates the arguments of a call and returns them in the form of the tool's schema.
    ///
    /// # Errors
    /// Returns a message about the violation.
    fn arguments(&self, tool: &FunctionTool, arguments: Value) -> Result<Value, String>;

    /// Returns the value of an answer.
    ///
    /// # Errors
    /// Returns a message about why it cannot be used.
    fn output(&self, text: &str) -> Result<Json, String>;

    /// Evaluates the rules at a moment.
    ///
    /// # Errors
    /// Fails when a rule itself fails. The loop then stops.
    fn rule(&self, moment: &Moment<'_>, sums: &Sums) -> Result<RuleVerdict, Failure>;
}

/// A moment at which rules are evaluated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment<'a> {
    /// Before a request to the model.
    BeforeModel,
    /// After the model's answer.
    AfterModel {
        /// The text of the answer.
        text: &'a str,
        /// The number of requested calls.
        calls: usize,
    },
    /// Before a tool call.
    BeforeTool {
        /// The tool.
        tool: &'a str,
        /// Its arguments.
        arguments: &'a Value,
    },
    /// After a tool call.
    AfterTool {
        /// The tool.
        tool: &'a str,
        /// The output; absent if the call failed.
        output: Option<&'a Json>,
        /// The failure.
        error: Option<&'a Failure>,
    },
}

/// The verdict of the rules.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuleVerdict {
    /// Stops the loop, for this reason.
    pub halt: Option<String>,
    /// Refuses the call, for this reason.
    pub deny: Option<String>,
    /// Asks a person first.
    pub ask: bool,
    /// Before a call: merged over the arguments. After it: replaces the output.
    pub set: Option<Value>,
    /// Messages added for the next request to the model.
    pub say: Vec<String>,
}

impl LoopStop {
    /// Creates a stop.
    pub fn new(exit: ExitReason, failure: Failure) -> Box<Self> {
        Box::new(Self { exit, failure })
    }

    /// Creates a stop from a failure, with the exit reason that fits its kind.
    pub fn of(failure: Failure) -> Box<Self> {
        let exit = match failure.kind.as_str() {
            kind::BUDGET => ExitReason::BudgetExhausted,
            kind::TIMEOUT => ExitReason::Timeout,
            kind::OPERATOR_UNAVAILABLE => ExitReason::CircuitBreaker,
            kind::REFUSED => ExitReason::interceptor_halt(failure.message.clone()),
            _ => ExitReason::Error,
        };
        Self::new(exit, failure)
    }

    pub(super) fn safety(message: &str) -> Box<Self> {
        Self::new(ExitReason::safety_stop(message), Failure::new(kind::MODEL, message))
    }
}

/// Returns the calls of an answer, in order. Of calls with the same id, only the first is kept.
pub(super) fn asked_for(reply: &ModelReply) -> Result<Vec<Value>, Box<LoopStop>> {
    let mut calls: Vec<Value> = Vec::new();
    for item in reply.calls() {
        let text = |key: &str| item[key].as_str().filter(|text| !text.is_empty());
        let (Some(call_id), Some(_)) = (text("call_id"), text("name")) else {
            let message = "the model asks for a call without a `call_id` or a `name`";
            return Err(LoopStop::of(Failure::new(kind::MODEL, message)));
        };
        if !calls.iter().any(|call| call["call_id"] == call_id) {
            calls.push(item.clone());
        }
    }
    if calls.len() > BATCH {
        let message =
            format!("the model asks for {} calls at once, {BATCH} are allowed", calls.len());
        return Err(LoopStop::of(Failure::new(kind::LIMIT, message)));
    }
    Ok(calls)
}
