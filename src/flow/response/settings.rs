//! What a loop knows before it begins.

use rust_decimal::Decimal;

use crate::protocol::{FunctionTool, Scope};

/// What a loop is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopSettings {
    /// The operator that is asked, for events.
    pub operator: String,
    /// The run that it belongs to, for events.
    pub run: String,
    /// The tools that are known from the start.
    pub tools: Vec<Face>,
    /// The servers that are asked for theirs first.
    pub servers: Vec<String>,
    /// Whether the caller wants the items of the answer, and not its value.
    pub asked: bool,
    /// What must not be passed.
    pub limits: LoopLimits,
    /// How the conversation is kept short.
    pub compaction: Option<Compaction>,
    /// Where turns are written before they leave the conversation.
    pub flush: Option<Flush>,
}

/// A tool, as far as the loop goes by it.
#[derive(Debug, Clone, PartialEq)]
pub struct Face {
    /// What the model sees of it.
    pub tool: FunctionTool,
    /// Who executes it.
    pub owner: Owner,
    /// Whether it may be called.
    pub approve: Approve,
    /// Whether it may be executed beside others.
    pub parallel_safe: bool,
}

/// Who executes a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The host.
    Host,
    /// Whoever asked: its calls are handed back.
    Caller,
}

/// Whether a tool may be called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Approve {
    /// Always.
    #[default]
    Allow,
    /// Once a person agrees, each time.
    Ask,
    /// Never.
    Deny,
}

/// What a loop must not pass.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopLimits {
    /// How often the model is asked.
    pub turns: u32,
    /// How many tools are called; a batch that would pass it ends the loop with an answer.
    pub tool_calls: Option<u32>,
    /// How often the same batch of calls comes in a row until that is taken for a loop.
    pub repeats: u32,
    /// How many calls fail in a row.
    pub failures: u32,
    /// Money in US dollars.
    pub cost: Option<Decimal>,
    /// What the model is shown of one output, in bytes.
    pub output: usize,
    /// The part of a limit at which a warning is told, from 0 to 1.
    pub warn_at: f64,
    /// What happens once the money is used up.
    pub exceeded: Exceeded,
}

/// What happens once the money of a loop is used up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Exceeded {
    /// The loop ends.
    #[default]
    Halt,
    /// It is told, and the loop goes on.
    Continue,
    /// The loop goes on with this model.
    Downgrade(String),
}

/// Where turns are written before they leave the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// The scope of state.
    pub scope: Scope,
    /// What stands before the number of a turn in its key.
    pub keys: String,
    /// Whether nothing leaves the conversation that could not be written.
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

/// How a conversation is kept short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// From how many tokens on.
    pub at_tokens: u64,
    /// How many of the last turns stay as they are.
    pub keep: u32,
    /// Whether the model sums up what goes; it is dropped otherwise.
    pub summarize: bool,
}
