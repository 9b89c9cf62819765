//! The failures that the sandbox itself gives a run.

use super::raw::{Armed, Breach, Coroutine, EncodeError, Frame};
use crate::{
    flow::{NextAction, RunLimits},
    journal::Note,
    protocol::{Failure, Json, failure::kind},
};

pub(crate) fn limit(message: impl Into<String>) -> Failure {
    Failure::new(kind::LIMIT, message)
}

pub(crate) fn memory(limits: &RunLimits) -> Failure {
    limit(format!("the script used more than {} MiB of memory", limits.memory >> 20))
}

/// Returns the failure of a flow that exceeded an allowance, with the current line.
pub(crate) fn breach(breach: Breach, armed: &Armed<'_>, limits: &RunLimits) -> Failure {
    match breach {
        Breach::Cpu => at(
            armed,
            &format!(
                "the script ran for more than {} ms without an await: a loop that never ends, or work for an agent",
                limits.slice_ms
            ),
        ),
        Breach::Memory => at(armed, &memory(limits).message),
        Breach::Canceled => canceled(),
    }
}

/// A broken limit, with the line that it was broken in.
pub(crate) fn at(armed: &Armed<'_>, message: &str) -> Failure {
    match armed.place() {
        Some(place) => limit(format!("{place}: {message}")),
        None => limit(message),
    }
}

/// Returns the error that a coroutine ended with. The data of an error of the script itself has the
/// calls in progress.
///
/// The traceback is a part of the recorded failure, so a replay takes it from there.
pub(crate) fn raised(co: &Coroutine) -> Failure {
    let frames = co.traceback();
    traced(co.raised(), &frames)
}

pub(crate) fn traced(failure: Failure, frames: &[Frame]) -> Failure {
    let of_script = failure.is(kind::SCRIPT) || failure.is(kind::LIMIT);
    if !of_script || failure.data.is_some() || frames.is_empty() {
        return failure;
    }
    failure.with_data(Json::from(&serde_json::json!({ "traceback": frames })))
}

/// A value that is larger than a run's may be, with the call that it was for.
pub(crate) fn too_large(error: &EncodeError, co: &Coroutine) -> Failure {
    let frames = co.traceback();
    let place = frames.first().map_or_else(String::new, |it| format!("{}:{}: ", it.file, it.line));
    let message = format!("{place}{error}; keep it with ctx:artifact and hand its id on");
    traced(limit(message), &frames)
}

pub(crate) fn canceled() -> Failure {
    Failure::new(kind::CANCELED, "it was canceled")
}

/// Returns the end of a flow whose output is not a JSON value.
pub(crate) fn output(error: &EncodeError) -> NextAction {
    match error {
        EncodeError::Value { .. } => {
            let message = format!("the flow's output: {error}");
            NextAction::Fail(Failure::new(kind::SCRIPT, message))
        }
        EncodeError::TooLarge { .. } => {
            let message = format!("the flow's output: {error}; keep it with ctx:artifact");
            NextAction::Limit(limit(message))
        }
    }
}

pub(crate) fn log(level: &str, message: String) -> Note {
    Note::Log { level: level.to_owned(), message, data: None }
}
