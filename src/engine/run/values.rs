//! Conversions of small values of a run and its flow.

use crate::{
    blueprint::CompiledAgent,
    flow::Input,
    journal::{Outcome, Step, StepKey},
    protocol::{Failure, Json, OperatorInput, RunId, StepKind, StepState, failure::kind},
    schema,
    token::Grant,
};

/// The rule of [`is_word`], for messages.
pub(crate) const WORD_RULE: &str = "1 to 200 bytes without control characters";

/// Returns true if a signal or a query can have the name, which is shown to people.
pub(crate) fn is_word(name: &str) -> bool {
    !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control)
}

/// Returns the input of an operator for an input of the protocol: the message alone, or with its
/// metadata.
pub(crate) fn task_input(input: &OperatorInput) -> Json {
    Json::encode(&input.message).expect("content is plain data")
}

/// Returns a result in the form of the agent's schema.
///
/// # Errors
/// Fails with the first place where it does not match.
pub(crate) fn fitting(agent: &CompiledAgent, output: &Json) -> Result<Json, Failure> {
    agent.output().accept_json(output).map_err(|violations| {
        let what = schema::first_of(&violations);
        let message = format!("the result does not match its schema{what}");
        Failure::new(kind::INVALID_RESULT, message)
    })
}

/// Returns the value of a wait that received a signal.
pub(crate) fn payload_value(payload: &Json) -> Json {
    Json::from_trusted(format!("{{\"payload\":{}}}", payload.as_str()))
}

/// Returns the value of a wait that timed out.
pub(crate) fn timeout_value() -> Json {
    Json::from_trusted("{\"timeout\":true}")
}

/// Converts the outcome of a step to an input of the flow.
pub(crate) fn input_of(key: StepKey, outcome: Outcome) -> Input {
    match outcome {
        Outcome::Completed(output) => Input::Completed { key, output },
        Outcome::Failed(failure) => Input::Failed { key, failure },
        Outcome::Canceled(reason) => {
            Input::Failed { key, failure: Failure::new(kind::CANCELED, reason) }
        }
    }
}

/// Parses the run id that a child step has as its call id.
pub(crate) fn child_id(call_id: Option<&str>) -> Option<RunId> {
    call_id?.parse().ok()
}

/// Returns the run that a canceled step called, unless its usage was counted.
pub(crate) fn canceled_call(step: &Step) -> Option<RunId> {
    let is_one = step.scheduled.kind == StepKind::Child
        && step.state == StepState::Canceled
        && step.usage.is_none();
    child_id(step.scheduled.call_id.as_deref().filter(|_| is_one))
}

/// Returns the grant that a run was started with; an empty one if it cannot be parsed.
pub(crate) fn grant_of(json: &crate::protocol::Json) -> Grant {
    json.decode().unwrap_or_else(|_| {
        Grant::new(crate::token::Role::Observer, crate::token::Scopes(Vec::new()))
    })
}
