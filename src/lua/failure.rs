//! The failures that the sandbox itself gives a run.

use super::raw::{Breach, EncodeError};
use crate::{
    flow::{NextAction, RunLimits},
    journal::Note,
    protocol::{Failure, failure::kind},
};

pub(crate) fn limit(message: impl Into<String>) -> Failure {
    Failure::new(kind::LIMIT, message)
}

pub(crate) fn memory(limits: &RunLimits) -> Failure {
    limit(format!("the script used more than {} MiB of memory", limits.memory >> 20))
}

pub(crate) fn breach(breach: Breach, limits: &RunLimits) -> Failure {
    match breach {
        Breach::Cpu => {
            limit(format!("the script ran for more than {} ms without an await", limits.slice_ms))
        }
        Breach::Memory => memory(limits),
        Breach::Canceled => canceled(),
    }
}

pub(crate) fn canceled() -> Failure {
    Failure::new(kind::CANCELED, "it was canceled")
}

/// How a flow ends whose output is not a JSON value.
pub(crate) fn output(error: &EncodeError) -> NextAction {
    match error {
        EncodeError::Value { .. } => {
            let message = format!("the flow's output: {error}");
            NextAction::Fail(Failure::new(kind::SCRIPT, message))
        }
        EncodeError::TooLarge { .. } => NextAction::Limit(limit(error.to_string())),
    }
}

pub(crate) fn log(level: &str, message: String) -> Note {
    Note::Log { level: level.to_owned(), message, data: None }
}
