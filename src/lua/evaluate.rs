//! Evaluating a blueprint's source once, for what it declares.

use std::time::Duration;

use super::{
    desk::Mode,
    random::Random,
    raw::{Allowance, Armed, Clock, Coroutine, Delivery, Halt},
    source::Source,
    vm::Vm,
    vms::Limits,
};
use crate::protocol::Failure;

/// An error in a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("evaluate {file}: {message}")]
pub struct LuaError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
    /// The message.
    pub message: String,
    /// A stable code.
    pub code: &'static str,
}

/// The text is not Luau.
const SYNTAX: &str = "MS-L0001";
/// The code raised an error.
const RAISED: &str = "MS-L0002";
/// The code returned something else than a blueprint.
const NO_BLUEPRINT: &str = "MS-L0003";
/// The code ran too long or took too much memory.
const LIMIT: &str = "MS-L0004";
/// The bundle lacks its main file.
const NO_ENTRY: &str = "MS-L0005";

/// Evaluates a source and returns the table that it passed to `swarm.blueprint`. A function is
/// `{"$function": {"file": …, "line": …}}` in it, and a schema is JSON Schema.
///
/// # Errors
/// Returns the errors of the source, with file and line.
pub fn evaluate(source: &Source, limits: &Limits) -> Result<serde_json::Value, Vec<LuaError>> {
    let entry = source.entry();
    let wrong = |code, message: String| {
        vec![LuaError { file: entry.to_owned(), line: None, column: None, message, code }]
    };
    if source.text(entry).is_none() {
        return Err(wrong(NO_ENTRY, "the bundle has no such file".to_owned()));
    }
    let opened = Vm::open(source, limits.evaluate_memory.saturating_mul(2), 1, true);
    let vm = opened.map_err(|error| wrong(LIMIT, error.to_string()))?;
    vm.desk.open(Mode::Pure, 0, Random::new(0), limits.value);
    let out_of_memory = || {
        wrong(
            LIMIT,
            format!(
                "to read the file takes more than {} MiB of memory",
                limits.evaluate_memory >> 20
            ),
        )
    };
    let co = vm.machine.coroutine(1, &vm.entries.evaluate, ()).map_err(|_| out_of_memory())?;
    let armed = Armed::new(Allowance {
        category: 1,
        memory: limits.evaluate_memory,
        clock: Clock::Own { limit: Duration::from_millis(limits.evaluate_ms), cancel: None },
    });
    let halt = co.resume(&armed, Delivery::Nothing);
    let placed = |mut errors: Vec<LuaError>| {
        let at = armed.place();
        if let (Some(error), Some((file, line))) =
            (errors.first_mut(), at.as_deref().and_then(|at| at.rsplit_once(':')))
        {
            error.file = file.to_owned();
            error.line = line.parse().ok();
        }
        errors
    };
    match armed.breach() {
        Some(super::raw::Breach::Memory) => return Err(placed(out_of_memory())),
        Some(_) => {
            let message = format!(
                "to read the file takes more than {} ms: is there a loop that never ends?",
                limits.evaluate_ms
            );
            return Err(placed(wrong(LIMIT, message)));
        }
        None => {}
    }
    match halt {
        _ if vm.desk.starved.get() => Err(out_of_memory()),
        Halt::Returned => tree(&co, limits).map_err(|message| wrong(NO_BLUEPRINT, message)),
        Halt::Raised => Err(vec![located(source, &co.raised())]),
        Halt::Called => Err(wrong(RAISED, "it waits for something".to_owned())),
        Halt::OutOfMemory | Halt::Undelivered => Err(out_of_memory()),
    }
}

fn tree(co: &Coroutine, limits: &Limits) -> Result<serde_json::Value, String> {
    let text = co.described(1, limits.value).map_err(|error| error.to_string())?;
    serde_json::from_str(text.as_str()).map_err(|error| error.to_string())
}

/// Takes the place out of a message that begins with `file:line:`.
fn located(source: &Source, failure: &Failure) -> LuaError {
    let entry = source.entry();
    let code = if failure.is("not_a_blueprint") { NO_BLUEPRINT } else { RAISED };
    let message = failure.message.clone();
    let Some((file, line, rest)) = place(&message) else {
        return LuaError { file: entry.to_owned(), line: None, column: None, message, code };
    };
    let text = source.text(file).unwrap_or_default();
    let column = column(text, line, rest);
    let code = if is_syntax(rest) { SYNTAX } else { code };
    LuaError { file: file.to_owned(), line: Some(line), column, message: rest.to_owned(), code }
}

/// Splits `file:line: message`.
pub(super) fn place(message: &str) -> Option<(&str, u32, &str)> {
    let (file, rest) = message.split_once(':')?;
    let (line, rest) = rest.split_once(':')?;
    let line = line.parse().ok()?;
    Some((file, line, rest.trim_start()))
}

/// Returns true for a message of the parser, which always names what it expected or could not read.
fn is_syntax(message: &str) -> bool {
    ["Expected ", "Malformed ", "Incomplete ", "Exceeded ", "Unexpected ", "Ambiguous ", "Out of "]
        .iter()
        .any(|start| message.starts_with(start))
        || message.contains("when parsing")
        || message.contains("too long to compile")
}

/// The column of what the parser stumbled over, if the line has it exactly once.
fn column(text: &str, line: u32, message: &str) -> Option<u32> {
    let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let (_, rest) = message.split_once("got '")?;
    let token = &rest[..rest.find('\'')?];
    let at = line.find(token)?;
    (line.rfind(token) == Some(at))
        .then(|| u32::try_from(line[..at].chars().count() + 1).ok())
        .flatten()
}
