//! The vocabulary of a multi-step chain.

use serde::{Deserialize, Serialize};

use super::Json;

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
    /// The request, kept verbatim.
    pub request_payload: Json,
    /// The provider's id of the call; matches a call to its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// The next action of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NextAction {
    /// Appends these steps, which run concurrently; never empty.
    AppendSteps(Vec<StepDescriptor>),
    /// Ends the chain with a value.
    Complete(Json),
    /// Ends the chain with an error.
    Fail(Json),
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
    /// The request, kept verbatim.
    pub request_payload: Json,
    /// The provider's id of the call.
    pub call_id: Option<String>,
    /// The value; only for a completed step.
    pub response_payload: Option<Json>,
    /// The error; only for a failed step.
    pub error: Option<Json>,
}

impl StepDescriptor {
    /// Creates a step without a call id.
    pub fn new(kind: StepKind, request_payload: Json) -> Self {
        Self { kind, request_payload, call_id: None }
    }

    /// Sets the provider's id of the call.
    #[must_use]
    pub fn with_call_id(mut self, call_id: impl Into<String>) -> Self {
        self.call_id = Some(call_id.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [StepKind; 8] = [
        StepKind::Task,
        StepKind::ModelCall,
        StepKind::ToolCall,
        StepKind::Timer,
        StepKind::Signal,
        StepKind::Child,
        StepKind::State,
        StepKind::Local,
    ];

    #[test]
    fn a_kinds_word_is_its_wire_form_and_its_code_is_its_own() {
        for (place, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(usize::from(kind.code()), place + 1);
        }
    }

    #[test]
    fn a_request_is_kept_as_it_was_written() {
        let request = Json::parse(r#"{"b": 1,  "a": 1.50}"#).unwrap();
        let step = StepDescriptor::new(StepKind::ToolCall, request.clone()).with_call_id("call_9");
        let wire = serde_json::to_string(&NextAction::AppendSteps(vec![step.clone()])).unwrap();
        let expected = r#"{"append_steps":[{"kind":"tool_call","request_payload":{"b": 1,  "a": 1.50},"call_id":"call_9"}]}"#;
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
