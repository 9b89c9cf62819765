//! The vocabulary of a multi-step chain.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepKind {
    /// An operator executes it.
    Task,
    /// A model call.
    ModelCall,
    /// A tool call of a model.
    ToolCall,
    /// A timer.
    Timer,
    /// A wait for a signal.
    Signal,
    /// A call of another run.
    Child,
    /// A read or write of state.
    State,
    /// An operation within the host: an artifact, a signal to another run.
    Local,
}

impl StepKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Task,
        Self::ModelCall,
        Self::ToolCall,
        Self::Timer,
        Self::Signal,
        Self::Child,
        Self::State,
        Self::Local,
    ];

    /// Returns a number that never changes, for hashes.
    pub fn code(self) -> u8 {
        match self {
            Self::Task => 1,
            Self::ModelCall => 2,
            Self::ToolCall => 3,
            Self::Timer => 4,
            Self::Signal => 5,
            Self::Child => 6,
            Self::State => 7,
            Self::Local => 8,
        }
    }

    /// Returns the name in APIs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::ModelCall => "model_call",
            Self::ToolCall => "tool_call",
            Self::Timer => "timer",
            Self::Signal => "signal",
            Self::Child => "child",
            Self::State => "state",
            Self::Local => "local",
        }
    }
}

/// The state of a step. The last three are terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepState {
    /// Scheduled, without a worker yet.
    Pending,
    /// Held by a worker.
    Processing,
    /// Ended with a value.
    Completed,
    /// Ended with an error.
    Failed,
    /// Given up.
    Canceled,
}

impl StepState {
    /// Returns true if the state never changes again.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Processing => false,
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }
}

/// A step to append to a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepDescriptor {
    /// The kind.
    pub kind: StepKind,
    /// The request. A call of a tool has a `name`, `arguments` (or `args`), and mostly the
    /// provider's `call_id`.
    pub request_payload: Value,
}

/// The next action of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NextAction {
    /// Appends these steps, which run concurrently; never empty.
    AppendSteps(Vec<StepDescriptor>),
    /// Ends the chain with a value.
    Complete(Value),
    /// Ends the chain with an error.
    Fail(Value),
}

/// The id and sequence number of a recorded step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordedStep {
    /// The step's id.
    pub id: String,
    /// The sequence number within the request, over all scopes.
    pub sequence: i64,
}

/// The current state of a step of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainStep {
    /// The step's id.
    pub id: String,
    /// The kind.
    pub kind: StepKind,
    /// The state.
    pub state: StepState,
    /// The sequence number within the request, over all scopes.
    pub sequence: i64,
    /// The previous step of the same scope.
    pub prev_step_id: Option<String>,
    /// The step whose sub-loop it belongs to.
    pub parent_step_id: Option<String>,
    /// The value; only for a completed step.
    pub response_payload: Option<Value>,
    /// The error; only for a failed step.
    pub error: Option<Value>,
}

impl StepDescriptor {
    /// Creates a step.
    pub fn new(kind: StepKind, request_payload: Value) -> Self {
        Self { kind, request_payload }
    }

    /// Sets the provider's id of the call in the payload, which has to be an object.
    #[must_use]
    pub fn with_call_id(mut self, call_id: impl Into<String>) -> Self {
        if let Value::Object(payload) = &mut self.request_payload {
            payload.insert("call_id".to_owned(), Value::String(call_id.into()));
        }
        self
    }

    /// Returns the name of the tool that it calls.
    pub fn tool_name(&self) -> Option<&str> {
        self.request_payload.get("name")?.as_str()
    }

    /// Returns the provider's id of the call, which matches a call to its result.
    pub fn call_id(&self) -> Option<&str> {
        self.request_payload.get("call_id")?.as_str()
    }

    /// Returns the arguments as they were written: `arguments`, or `args`, if there are any.
    pub fn arguments(&self) -> Option<&Value> {
        let of = |key: &str| self.request_payload.get(key);
        of("arguments").or_else(|| of("args"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kinds_word_is_its_wire_form_and_its_code_is_its_own() {
        for (place, kind) in StepKind::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(usize::from(kind.code()), place + 1);
        }
    }

    #[test]
    fn a_request_is_kept_as_it_was_written() {
        let request = serde_json::json!({ "name": "b", "args": { "z": 1, "a": 1.5 } });
        let step = StepDescriptor { kind: StepKind::ToolCall, request_payload: request };
        assert_eq!((step.tool_name(), step.call_id()), (Some("b"), None));
        assert_eq!(step.arguments().unwrap()["a"], 1.5, "`args` says the same as `arguments`");
        let step = step.with_call_id("call_9");
        assert_eq!(step.call_id(), Some("call_9"));
        let wire = serde_json::to_string(&NextAction::AppendSteps(vec![step.clone()])).unwrap();
        let expected = r#"{"append_steps":[{"kind":"tool_call","request_payload":{"name":"b","args":{"z":1,"a":1.5},"call_id":"call_9"}}]}"#;
        assert_eq!(wire, expected);
        let read: NextAction = serde_json::from_str(&wire).unwrap();
        assert_eq!(read, NextAction::AppendSteps(vec![step]));
    }

    #[test]
    fn only_the_last_three_states_are_terminal() {
        use StepState::{Canceled, Completed, Failed, Pending, Processing};
        let terminal =
            [Pending, Processing, Completed, Failed, Canceled].map(StepState::is_terminal);
        assert_eq!(terminal, [false, false, true, true, true]);
    }
}
