//! The declaration of an agent whose operator is a model: its tools, its limits and its rules.

use rust_decimal::Decimal;
use serde_json::Value;

use crate::{
    flow::response::{Approve, Compaction, Exceeded, LoopLimits},
    protocol::{CompactionPolicy, Json},
};

/// The declaration of a loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelLoop {
    /// Its tools.
    pub tools: Vec<Tool>,
    /// The maximum number of model calls.
    pub max_turns: Option<u32>,
    /// Money in US dollars for one task.
    pub max_cost: Option<Decimal>,
    /// Time for one task, in milliseconds.
    pub max_duration_ms: Option<u64>,
    /// The maximum number of identical batches of calls in a row.
    pub max_repeats: Option<u32>,
    /// The maximum number of failed calls in a row.
    pub max_failures: Option<u32>,
    /// The maximum number of tool calls.
    pub max_tool_calls: Option<u32>,
    /// The rules.
    pub rules: Vec<Rule>,
    /// The compaction of the conversation.
    pub compaction: Option<Compaction>,
    /// The place to which turns are written before they leave the conversation.
    pub flush: Option<Flush>,
    /// The part of a limit at which a warning is told.
    pub warn_at: Option<f64>,
    /// The action when `max_cost` is used up.
    pub exceeded: Exceeded,
}

/// The place to which turns are written before they leave a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// Which scope of state; the run's own if absent.
    pub scope: Option<String>,
    /// The prefix of every key.
    pub prefix: String,
    /// True if nothing leaves the conversation that could not be written.
    pub required: bool,
}

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name to the model; of a server or of state what stands before the names of its tools.
    pub name: String,
    /// The description.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input: Option<Json>,
    /// True if arguments that the schema does not declare are accepted.
    pub open: bool,
    /// True if it may be called.
    pub approve: Approve,
    /// True if it may be executed beside others.
    pub parallel_safe: bool,
    /// The treatment of its calls when the conversation is shortened.
    pub policy: CompactionPolicy,
    /// Time for one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The executor.
    pub target: Target,
}

/// The executor of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Another agent of the blueprint.
    Agent(String),
    /// An operator, with nothing but the arguments.
    Operator(String),
    /// The tools of an MCP server; those allowed, or all.
    Mcp {
        /// Its operator.
        server: String,
        /// The names that are let through; a `*` at the end stands for any rest.
        allow: Option<Vec<String>>,
    },
    /// The Lua function that stands at this place of the agent's `tools`, from 1.
    Function(usize),
    /// State.
    State {
        /// True if it may be changed.
        write: bool,
        /// Which scope; the run's own if absent.
        scope: Option<String>,
        /// The prefix of every key.
        prefix: String,
    },
}

/// Something that is looked at on the way, and what is done about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The moment of its evaluation.
    pub on: On,
    /// The condition; always, if absent.
    pub when: Option<String>,
    /// Stops the loop, for this reason.
    pub halt: Option<String>,
    /// Refuses the call, for this reason.
    pub deny: Option<String>,
    /// Asks a person first.
    pub ask: bool,
    /// Laid over the arguments; in place of the output.
    pub set: Option<Value>,
    /// Said to the model before it is asked next.
    pub say: Option<String>,
}

/// The moment at which a rule is evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// Before the model is asked.
    BeforeModel,
    /// After it answered.
    AfterModel,
    /// Before a tool of this name is called; a `*` at the end stands for any rest.
    BeforeTool(String),
    /// After it was called.
    AfterTool(String),
}

impl ModelLoop {
    /// The limits, with the defaults of those that are not said.
    pub fn limits(&self) -> LoopLimits {
        let default = LoopLimits::default();
        LoopLimits {
            turns: self.max_turns.unwrap_or(default.turns),
            tool_calls: self.max_tool_calls,
            repeats: self.max_repeats.unwrap_or(default.repeats),
            failures: self.max_failures.unwrap_or(default.failures),
            cost: self.max_cost,
            output: default.output,
            warn_at: self.warn_at.unwrap_or(default.warn_at),
            exceeded: self.exceeded.clone(),
        }
    }
}

/// Returns true if a name fits one that may end in `*`.
pub fn name_fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => pattern == name,
    }
}

/// A name as models take it: letters, digits, `_` and `-`, at most 64 bytes. What is cut off is told
/// apart by a hash.
pub fn tool_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = text.chars().map(plain).collect();
    if name.len() <= 64 {
        return name;
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    format!("{}_{}", &name[..55], &hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_fit_for_models_and_stay_apart() {
        assert_eq!(tool_name("fs.read/all"), "fs_read_all");
        let (a, b) = (tool_name(&"a".repeat(65)), tool_name(&"a".repeat(66)));
        assert_eq!((a.len(), b.len()), (64, 64));
        assert_ne!(a, b);
    }

    #[test]
    fn a_star_stands_for_any_rest() {
        assert!(name_fits("fs_*", "fs_read") && name_fits("*", "x") && name_fits("x", "x"));
        assert!(!name_fits("fs_*", "net_get") && !name_fits("x", "xy"));
    }
}
