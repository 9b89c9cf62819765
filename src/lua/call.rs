//! The request of a halted `ctx` call.

use super::raw::{Coroutine, EncodeError, NoRoom};
use crate::{
    flow::{ArtifactOp, SetOpts, StateOp, StepOp, TaskOpts, TaskRequest},
    protocol::{Json, Tags},
};

macro_rules! operations {
    ($($name:ident = $luau:literal,)+) => {
        /// The operations of `ctx`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Operation {
            $($name,)+
        }

        const OPERATIONS: &[(Operation, &str)] = &[$((Operation::$name, $luau),)+];
    };
}

// In lua/ctx.luau an operation is a local with the name that stands here.
operations! {
    Run = "RUN",
    Sleep = "SLEEP",
    SleepUntil = "SLEEP_UNTIL",
    Wait = "WAIT",
    Call = "CALL",
    State = "STATE",
    Write = "WRITE",
    Read = "READ",
    Signal = "SIGNAL",
    All = "ALL",
    Race = "RACE",
    Timeout = "TIMEOUT",
    Spawn = "SPAWN",
    Await = "AWAIT",
    Cancel = "CANCEL",
    Defer = "DEFER",
    Query = "QUERY",
    ContinueAs = "CONTINUE",
}

/// Returns a part of the library with the numbers of the operations in the place of `OPERATIONS`.
pub(crate) fn with_operations(text: &str) -> String {
    let names: Vec<&str> = OPERATIONS.iter().map(|(_, name)| *name).collect();
    let numbers: Vec<String> = (1..=names.len()).map(|number| number.to_string()).collect();
    let line = format!("local {} = {}", names.join(", "), numbers.join(", "));
    text.replacen("--[[OPERATIONS]]", &line, 1)
}

/// The reason why a call is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Its arguments: raised in the script.
    Usage(String),
    /// A value is too large: the run is over its limit.
    TooLarge(EncodeError),
    /// There is no room in the VM.
    NoRoom,
}

impl From<NoRoom> for Refusal {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl Operation {
    /// The operation that the coroutine halted with.
    pub(crate) fn of(co: &Coroutine) -> Option<Self> {
        let number = whole(co, 1)?;
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        OPERATIONS.get(place).map(|(operation, _)| *operation)
    }
}

/// The step that a call stands for, if it is one that the engine executes.
pub(crate) fn step(
    operation: Operation,
    co: &Coroutine,
    now_ms: u64,
    limit: usize,
) -> Result<Option<StepOp>, Refusal> {
    Ok(Some(match operation {
        Operation::Run => StepOp::Task(Box::new(TaskRequest::new(
            text(co, 2)?,
            json(co, 3, "input", limit)?,
            opts(co, limit)?,
        ))),
        Operation::Sleep => StepOp::Timer { wake_at_ms: now_ms.saturating_add(number(co, 2)?) },
        Operation::SleepUntil => StepOp::Timer { wake_at_ms: number(co, 2)? },
        Operation::Wait => StepOp::Signal {
            name: text(co, 2)?,
            deadline_ms: whole(co, 3).map(|ms| now_ms.saturating_add(ms)),
        },
        Operation::Call => {
            let tags = tags(&json(co, 4, "opts.tags", limit)?)?;
            StepOp::Child { blueprint: text(co, 2)?, input: json(co, 3, "input", limit)?, tags }
        }
        Operation::State => state(co, limit)?,
        Operation::Write => StepOp::Artifact(ArtifactOp::Write {
            name: text(co, 2)?,
            data: co.bytes(3).unwrap_or_default(),
        }),
        Operation::Read => StepOp::Artifact(ArtifactOp::Read { id: text(co, 2)? }),
        Operation::Signal => StepOp::SendSignal {
            run: text(co, 2)?,
            name: text(co, 3)?,
            payload: json(co, 4, "payload", limit)?,
        },
        Operation::All
        | Operation::Race
        | Operation::Timeout
        | Operation::Spawn
        | Operation::Await
        | Operation::Cancel
        | Operation::Defer
        | Operation::Query
        | Operation::ContinueAs => return Ok(None),
    }))
}

fn state(co: &Coroutine, limit: usize) -> Result<StepOp, Refusal> {
    let key = text(co, 3)?;
    let op = match text(co, 2)?.as_str() {
        "get" => StateOp::Get { key },
        "set" => {
            let opts = json(co, 6, "opts", limit)?;
            let opts: Option<SetOpts> =
                opts.decode().map_err(|error| Refusal::Usage(format!("opts: {error}")))?;
            StateOp::Set { key, value: json(co, 4, "value", limit)?, opts: opts.map(Box::new) }
        }
        "delete" => StateOp::Delete { key },
        "list" => StateOp::List { prefix: key },
        "add" => StateOp::Add { key, by: co.number(4).unwrap_or(1.0) },
        "append" => StateOp::Append { key, value: json(co, 4, "value", limit)? },
        "merge" => StateOp::Merge { key, value: json(co, 4, "value", limit)? },
        "search" => {
            let limit = usize::try_from(number(co, 4)?).unwrap_or(usize::MAX);
            StateOp::Search { query: key, limit, prefix: String::new() }
        }
        "link" => {
            let metadata = if co.is_nil(7) { None } else { Some(json(co, 7, "metadata", limit)?) };
            StateOp::Link { key, to: text(co, 4)?, relation: text(co, 6)?, metadata }
        }
        "unlink" => StateOp::Unlink { key, to: text(co, 4)?, relation: text(co, 6)? },
        _ => {
            let depth = u32::try_from(number(co, 4)?).unwrap_or(u32::MAX);
            let relation = if co.is_nil(6) { None } else { Some(text(co, 6)?) };
            StateOp::Traverse { key, relation, depth }
        }
    };
    Ok(match co.text(5) {
        Some(scope) => StepOp::Scoped { scope, op },
        None => StepOp::State(op),
    })
}

fn opts(co: &Coroutine, limit: usize) -> Result<TaskOpts, Refusal> {
    if co.is_nil(4) {
        return Ok(TaskOpts::default());
    }
    let opts = json(co, 4, "opts", limit)?;
    opts.decode().map_err(|error| Refusal::Usage(format!("opts: {error}")))
}

/// The value at `at` as JSON, called `what` in a message.
pub(crate) fn json(co: &Coroutine, at: i32, what: &str, limit: usize) -> Result<Json, Refusal> {
    co.json(at, limit).map_err(|error| match error {
        EncodeError::Value { .. } => Refusal::Usage(format!("{what}: {error}")),
        EncodeError::TooLarge { .. } => Refusal::TooLarge(error),
    })
}

/// Reads the tags of a run.
fn tags(given: &Json) -> Result<Tags, Refusal> {
    // An empty table is an array.
    if given.is_null() || given.as_str() == "[]" {
        return Ok(Tags::default());
    }
    let tags = given.decode().map_err(|_| "a table of strings by name is expected".to_owned());
    let tags = tags.and_then(|tags| Tags::new(tags).map_err(|error| format!("failed to {error}")));
    tags.map_err(|reason| Refusal::Usage(format!("opts.tags: {reason}")))
}

/// Returns the text at `at`, which the library has checked to be a string. Refuses what is not
/// UTF-8: two such names would be stored as the same one.
pub(crate) fn text(co: &Coroutine, at: i32) -> Result<String, Refusal> {
    let bytes = co.bytes(at).ok_or_else(|| Refusal::Usage("a string is missing".to_owned()))?;
    String::from_utf8(bytes)
        .map_err(|_| Refusal::Usage("a name, a key or an id must be UTF-8".to_owned()))
}

/// The number at `at`, which the library has checked.
pub(crate) fn number(co: &Coroutine, at: i32) -> Result<u64, Refusal> {
    whole(co, at).ok_or_else(|| Refusal::Usage("a number is missing".to_owned()))
}

/// The number at `at`, if there is one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
pub(crate) fn whole(co: &Coroutine, at: i32) -> Option<u64> {
    co.number(at).map(|number| number as u64)
}
