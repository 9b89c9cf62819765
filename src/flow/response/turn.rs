//! What a loop begins, how it stops, and what it asks about things that it does not know itself.

use serde_json::Value;

use super::settings::Face;
use crate::{
    journal::Usage,
    protocol::{ExitReason, Failure, FunctionTool, Json, ModelEnd, ModelReply, failure::kind},
};

/// The most calls in one answer.
const BATCH: usize = 128;

/// What comes next for a loop.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Nothing, until something ends.
    Wait,
    /// These begin, side by side, at the next places in their order; then there is another turn.
    Begin(Vec<Begin>),
    /// It is done.
    Done {
        /// Its value.
        value: Json,
        /// Why it ended there.
        end: ModelEnd,
    },
    /// It stops short.
    Stop(Box<Stop>),
}

/// Something that a loop begins.
#[derive(Debug, Clone, PartialEq)]
pub enum Begin {
    /// A server is asked for its tools; the value is a list of [`FunctionTool`]s.
    List {
        /// The server's operator.
        server: String,
    },
    /// The model is asked; the value is a [`ModelReply`].
    Ask {
        /// Which time, from 1.
        turn: u32,
    },
    /// The model is asked to sum up; the value is a [`ModelReply`].
    Compact {
        /// After which turn.
        turn: u32,
    },
    /// A turn that is to leave the conversation is written to state.
    Flush {
        /// Which, from 1.
        turn: u32,
    },
    /// A person is asked whether a tool may be called; the value is `{"approved": …}`.
    Approve(Call),
    /// A tool is called.
    Call(Call),
    /// A call that fails as it begins: nothing is executed.
    Refuse(Call, Failure),
}

/// Why a loop stops short.
#[derive(Debug, Clone, PartialEq)]
pub struct Stop {
    /// In the protocol's words.
    pub exit: ExitReason,
    /// What whoever asked hears.
    pub failure: Failure,
}

/// What a loop has come to so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// How often the model was asked.
    pub turns: u32,
    /// How many calls of tools began.
    pub calls: u32,
    /// What everything that ended used, as far as it was reported.
    pub used: Usage,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The provider's id of the call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// The arguments: an object, as the tool takes it. Of a refused call what the model wrote.
    pub arguments: Json,
    /// Whether it may be executed beside others.
    pub parallel_safe: bool,
}

/// What a loop asks about things that it does not know itself.
pub trait Judge {
    /// What a server's tools are to the model.
    fn faces(&self, server: &str, tools: Vec<FunctionTool>) -> Vec<Face>;

    /// The arguments as a tool's schema means them.
    ///
    /// # Errors
    /// How they break it.
    fn arguments(&self, tool: &FunctionTool, arguments: Value) -> Result<Value, String>;

    /// The value that an answer stands for.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn output(&self, text: &str) -> Result<Json, String>;

    /// What the rules say at a moment.
    ///
    /// # Errors
    /// When a rule itself fails; the loop stops then.
    fn rule(&self, moment: &Moment<'_>, sums: &Sums) -> Result<Verdict, Failure>;
}

/// When rules are asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment<'a> {
    /// Before the model is asked.
    BeforeModel,
    /// After it answered.
    AfterModel {
        /// What it says to the reader.
        text: &'a str,
        /// How many calls it asks for.
        calls: usize,
    },
    /// Before a tool is called.
    BeforeTool {
        /// The tool.
        tool: &'a str,
        /// Its arguments.
        arguments: &'a Value,
    },
    /// After a tool was called.
    AfterTool {
        /// The tool.
        tool: &'a str,
        /// What it said; nothing if it failed.
        output: Option<&'a Json>,
        /// Why it failed.
        error: Option<&'a Failure>,
    },
}

/// What rules say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// The loop stops, for this reason.
    pub halt: Option<String>,
    /// The call is refused, for this reason.
    pub deny: Option<String>,
    /// A person is asked first.
    pub ask: bool,
    /// Laid over the arguments; in place of the output.
    pub set: Option<Value>,
    /// Said to the model before it is asked next.
    pub say: Vec<String>,
}

impl Stop {
    /// A stop for a reason.
    pub fn new(exit: ExitReason, failure: Failure) -> Box<Self> {
        Box::new(Self { exit, failure })
    }

    /// A stop by something that failed.
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

/// The calls of an answer, in their order, each id once.
pub(super) fn asked_for(reply: &ModelReply) -> Result<Vec<Value>, Box<Stop>> {
    let mut calls: Vec<Value> = Vec::new();
    for item in reply.calls() {
        let text = |key: &str| item[key].as_str().filter(|text| !text.is_empty());
        let (Some(call_id), Some(_)) = (text("call_id"), text("name")) else {
            let message = "the model asks for a call without a `call_id` or a `name`";
            return Err(Stop::of(Failure::new(kind::MODEL, message)));
        };
        if !calls.iter().any(|call| call["call_id"] == call_id) {
            calls.push(item.clone());
        }
    }
    if calls.len() > BATCH {
        let message =
            format!("the model asks for {} calls at once, {BATCH} are allowed", calls.len());
        return Err(Stop::of(Failure::new(kind::LIMIT, message)));
    }
    Ok(calls)
}
