//! Small values that are read from a run, or handed to its flow.

use crate::{
    flow::Input,
    journal::{Outcome, StepKey},
    protocol::{Failure, Json, OperatorInput, RunId, failure::kind},
    token::Grant,
};

/// What an operator is given for an input of the protocol: its message alone, or with the data
/// that pass through.
pub(crate) fn task_input(input: &OperatorInput) -> Json {
    Json::encode(&input.message).expect("content is plain data")
}

/// The value of a wait that got a signal.
pub(crate) fn payload_value(payload: &Json) -> Json {
    Json::from_trusted(format!("{{\"payload\":{}}}", payload.as_str()))
}

/// The value of a wait whose time is up.
pub(crate) fn timeout_value() -> Json {
    Json::from_trusted("{\"timeout\":true}")
}

/// What a flow hears of a step's end.
pub(crate) fn input_of(key: StepKey, outcome: Outcome) -> Input {
    match outcome {
        Outcome::Completed(output) => Input::Completed { key, output },
        Outcome::Failed(failure) => Input::Failed { key, failure },
        Outcome::Canceled(reason) => {
            Input::Failed { key, failure: Failure::new(kind::CANCELED, reason) }
        }
    }
}

/// The id that a child step carries as its call id.
pub(crate) fn child_id(call_id: Option<&str>) -> Option<RunId> {
    call_id?.parse().ok()
}

/// The grant that a run was started with; nothing where it cannot be read.
pub(crate) fn grant_of(json: &crate::protocol::Json) -> Grant {
    json.decode().unwrap_or_else(|_| {
        Grant::new(crate::token::Role::Observer, crate::token::Scopes(Vec::new()))
    })
}
