//! The requests of a test, as lua/test.luau sends them.

use serde::Deserialize;
use serde_json::Value;

use crate::protocol::{Failure, Json};

/// The kind of failures for mistakes of the test itself.
const USAGE: &str = "usage";

/// Returns the failure for a mistake of the test itself.
pub(super) fn usage(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message)
}

/// One request.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Make a run ready; it begins with the first request that needs it.
    Start { path: String, input: Option<Value> },
    /// Store a blueprint that others call.
    Blueprint { path: String },
    /// The answers of an agent; `again` for ever, or one after the other.
    Mock { agent: String, answers: Vec<PreparedAnswer>, again: bool },
    /// The answers of an agent's model: its turns, or the results of a function.
    Model {
        agent: String,
        turns: Option<Vec<Value>>,
        #[serde(rename = "fn")]
        function: Option<u32>,
    },
    /// The answers of the agents of an exported run.
    Recorded { path: String },
    /// The answer of a person to a task of this agent.
    Answer { agent: String, answer: PreparedAnswer },
    /// Send a signal.
    Signal { run: usize, name: String, payload: Value },
    /// Let time pass.
    Advance { run: usize, by: Value },
    /// Cancel a run.
    Cancel { run: usize, reason: String },
    /// Ask a run's query.
    Query { run: usize, name: String, argument: Option<Value> },
    /// Let it go on to its end.
    Finish { run: usize },
    /// The state of a run.
    Look { run: usize },
    /// Its steps.
    Steps { run: usize },
    /// Compare a value with what it was.
    Snapshot { name: String, value: Value },
}

/// An answer, as a test gives it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreparedAnswer {
    /// This value.
    #[serde(default)]
    pub value: Option<Value>,
    /// The result of this function of the test.
    #[serde(default, rename = "fn")]
    pub function: Option<u32>,
    /// This failure.
    #[serde(default)]
    pub failure: Option<Failed>,
    /// A person's no, with the reason.
    #[serde(default)]
    pub reject: Option<String>,
}

/// A failure, as a test writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    kind: String,
    message: String,
    retryable: bool,
    #[serde(default)]
    data: Option<Value>,
}

impl From<Failed> for Failure {
    fn from(it: Failed) -> Self {
        let failure = Self { retryable: it.retryable, ..Self::new(&it.kind, it.message) };
        match it.data {
            Some(data) => failure.with_data(Json::from(&data)),
            None => failure,
        }
    }
}
