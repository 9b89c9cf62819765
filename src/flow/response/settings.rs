//! The settings of a tool loop.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::{CompactionPolicy, FunctionTool, Scope};

/// The settings with which a loop starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopSettings {
    /// The operator of the model, for events.
    pub operator: String,
    /// The run of the loop, for events.
    pub run: String,
    /// The tools known from the start.
    pub tools: Vec<Face>,
    /// The servers whose tools are listed first.
    pub servers: Vec<String>,
    /// True if the caller wants the items of the answer instead of its value.
    pub asked: bool,
    /// The limits.
    pub limits: LoopLimits,
    /// The compaction of the conversation; none if absent.
    pub compaction: Option<Compaction>,
    /// The state to which old turns are written before compaction removes them.
    pub flush: Option<Flush>,
    /// The conversation that the loop continues; none if absent.
    pub conversation: Option<Conversation>,
}

/// A tool from the point of view of the loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Face {
    /// The tool as the model sees it.
    pub tool: FunctionTool,
    /// The party that executes it.
    pub owner: Owner,
    /// The approval rule.
    pub approve: Approve,
    /// True if it may be executed in parallel with others.
    pub parallel_safe: bool,
    /// The treatment of its calls when the conversation is shortened.
    pub policy: CompactionPolicy,
}

/// The party that executes a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The host.
    Host,
    /// The caller: its calls are returned to it.
    Caller,
}

/// The approval rule of a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Approve {
    /// Calls are always allowed.
    #[default]
    Allow,
    /// A person must approve each call.
    Ask,
    /// Calls are never allowed.
    Deny,
}

/// The limits of a loop.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopLimits {
    /// Number of requests to the model.
    pub turns: u32,
    /// Number of tool calls. A batch that would exceed it ends the loop with an answer.
    pub tool_calls: Option<u32>,
    /// Number of identical batches in a row after which the model counts as stuck.
    pub repeats: u32,
    /// Number of failed calls in a row.
    pub failures: u32,
    /// Cost in US dollars.
    pub cost: Option<Decimal>,
    /// Size in bytes of one output that the model is shown.
    pub output: usize,
    /// The fraction of a limit at which a warning is sent, from 0 to 1.
    pub warn_at: f64,
    /// The action at the cost limit.
    pub exceeded: Exceeded,
}

/// The action when a loop reaches its cost limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Exceeded {
    /// The loop ends.
    #[default]
    Halt,
    /// An event is emitted, and the loop continues.
    Continue,
    /// The loop continues with this model.
    Downgrade(String),
}

/// The state to which old turns are written before they leave the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// The state scope.
    pub scope: Scope,
    /// The prefix of the key, before the turn's number.
    pub keys: String,
    /// True if nothing may be removed after a failed write.
    pub required: bool,
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self {
            turns: 10,
            tool_calls: None,
            repeats: 5,
            failures: 10,
            cost: None,
            output: 100_000,
            warn_at: 0.8,
            exceeded: Exceeded::Halt,
        }
    }
}

/// The compaction of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// The number of tokens from which on the conversation is compacted.
    pub at_tokens: u64,
    /// The number of recent turns that are kept unchanged.
    pub keep: u32,
    /// True if the model summarizes the removed turns. Otherwise they are dropped.
    pub summarize: bool,
}

/// The place of a loop's conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The state scope.
    pub scope: String,
    /// The key.
    pub key: String,
}

/// A conversation as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    /// The number of times it was written, which is the revision of its value.
    pub revision: u64,
    /// The items, the oldest first.
    pub items: Vec<Value>,
    /// The index in `items` at which each exchange starts.
    #[serde(default)]
    pub exchanges: Vec<usize>,
}

/// The state of a loop's conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct Recalled {
    /// True if it has been read.
    pub(super) done: bool,
    pub(super) revision: u64,
    /// The number of items that were read, which are the first of the loop's own.
    pub(super) items: usize,
    pub(super) tries: u32,
    /// The revision that a failed write found.
    pub(super) found: u64,
}
