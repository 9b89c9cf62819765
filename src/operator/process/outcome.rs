//! The meaning of a child's exit for its attempt.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, sync::Arc};

use serde_json::{Map, Value, json};

use super::child::Exit;
use crate::{
    environment::apart,
    protocol::{EnvError, Failure, Json, failure::kind},
};

/// The number of bytes that a failure keeps of each stream, from the end.
const TAIL: usize = 16 * 1024;
/// The number of bytes that are parsed on a thread of the runtime.
const QUICK: usize = 256 * 1024;

pub(super) fn given_up() -> Failure {
    Failure::new(kind::CANCELED, "the attempt was given up")
}

/// Converts an error of an environment to the failure of its task.
pub(super) fn failure_of(error: EnvError) -> Failure {
    let message = error.to_string();
    match error {
        EnvError::ResourceExceeded(_) => Failure::new(kind::LIMIT, message),
        // A vault may answer or a disk have space a moment later; a machine does not change.
        EnvError::CredentialFailed(_) | EnvError::ProvisionFailed(_) => {
            Failure::new(kind::ENVIRONMENT, message).retryable()
        }
        EnvError::IsolationViolation(_) | EnvError::OperatorError(_) | EnvError::Other(_) => {
            Failure::new(kind::ENVIRONMENT, message)
        }
    }
}

/// Returns the result of a child that exited; it has at most `cap` bytes.
pub(super) async fn outcome(
    program: &str,
    mut exit: Exit,
    check: bool,
    cap: usize,
) -> Result<Json, Failure> {
    if check && !exit.status.success() {
        return Err(failure(program, &exit));
    }
    // As a text it has as many bytes as were printed.
    let size = exit.stdout.len();
    if size > cap && (!check || shortest(&exit.stdout) > cap) {
        let message = format!("the result has more than {cap} bytes: `{program}` printed {size}");
        return Err(Failure::new(kind::LIMIT, message));
    }
    if check {
        let (value, stdout) = parsed(exit.stdout).await;
        if let Some(value) = value {
            return Ok(value);
        }
        exit.stdout = stdout;
    }
    Ok(Value::Object(facts(exit.status, &exit.stdout, &exit.stderr)).into())
}

/// Returns the JSON that a child printed, if it is JSON, and what it printed.
async fn parsed(stdout: Vec<u8>) -> (Option<Json>, Vec<u8>) {
    if stdout.len() <= QUICK {
        return (parse(&stdout), stdout);
    }
    let stdout = Arc::new(stdout);
    let theirs = Arc::clone(&stdout);
    let value = match apart("parse", move || parse(&theirs)).await {
        Some(value) => value,
        // There is no thread for it.
        None => parse(&stdout),
    };
    (value, Arc::unwrap_or_clone(stdout))
}

/// Parses as a tree, which rejects documents that later readers could not process: numbers beyond a
/// double, lone surrogates.
fn parse(stdout: &[u8]) -> Option<Json> {
    serde_json::from_slice::<Value>(stdout).ok().map(Into::into)
}

/// Returns the number of bytes that JSON has at least, however it is spelled: without what is between
/// its parts, without its numbers, and with one byte for each character that is escaped. A key that
/// occurs twice counts twice, although one value of it is kept.
fn shortest(json: &[u8]) -> usize {
    let (mut bytes, mut is_text, mut rest) = (0, false, json.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text => {
                if rest.next() == Some(&b'u') {
                    let _ = rest.nth(3);
                }
            }
            b'[' | b']' | b'{' | b'}' | b',' | b':' => {}
            _ if is_text => {}
            _ => continue,
        }
        bytes += 1;
    }
    bytes
}

/// Returns the failure of a child that exceeded the limit on stdout.
pub(super) fn overflow(program: &str, cap: usize) -> Failure {
    Failure::new(
        kind::LIMIT,
        format!(
            "`{program}` printed more than {cap} bytes on stdout; large results belong in an \
             artifact (POST /v1/worker/artifact)"
        ),
    )
}

/// Returns the failure of a child that did not start.
pub(super) fn not_started(program: &str, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "it is not installed, or not on the host's PATH",
        std::io::ErrorKind::PermissionDenied => "it is not executable for the host's user",
        std::io::ErrorKind::InvalidInput => "an argument or variable has a NUL byte",
        std::io::ErrorKind::ArgumentListTooLong => {
            "its arguments are too long; the input is on stdin as well"
        }
        _ => "the host may be out of processes, files or memory",
    };
    Failure::new(kind::PROCESS, format!("failed to start `{program}`: {error}; {hint}")).retryable()
}

/// Returns the failure of a program that did not start within the paths of its environment.
pub(super) fn not_started_within(program: &str, error: &std::io::Error) -> Failure {
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        return not_started(program, error);
    }
    let message = format!(
        "failed to start `{program}`: {error}; the agent's environment may not read it: name its \
         directory in `paths.read`"
    );
    Failure::new(kind::PROCESS, message)
}

fn failure(program: &str, exit: &Exit) -> Failure {
    let how = match exit.status.signal() {
        Some(signal) => format!("was killed by {}", signal_name(signal)),
        None => format!("exited with code {}", code(exit.status)),
    };
    let stderr = String::from_utf8_lossy(&exit.stderr);
    let last = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
    let message = match last {
        Some(line) => {
            format!("`{program}` {how}: {}", line.chars().take(200).collect::<String>())
        }
        None => format!("`{program}` {how}"),
    };
    let data = facts(exit.status, tail(&exit.stdout), tail(&exit.stderr));
    Failure::new(kind::PROCESS, message).with_data(Value::Object(data).into())
}

/// Returns `{exit_code, stdout, stderr}`, and the signal that ended it, if there was one.
fn facts(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Map<String, Value> {
    let mut facts = Map::new();
    facts.insert("exit_code".to_owned(), json!(code(status)));
    if let Some(signal) = status.signal() {
        facts.insert("signal".to_owned(), json!(signal_name(signal)));
    }
    facts.insert("stdout".to_owned(), json!(String::from_utf8_lossy(stdout)));
    facts.insert("stderr".to_owned(), json!(String::from_utf8_lossy(stderr)));
    facts
}

/// Returns the exit code as shells count it: 128 plus the signal for a killed child.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// Returns the last bytes of a stream, beginning with a whole character.
fn tail(bytes: &[u8]) -> &[u8] {
    let mut start = bytes.len().saturating_sub(TAIL);
    while start > 0 && bytes.get(start).is_some_and(|byte| byte & 0xc0 == 0x80) {
        start += 1;
    }
    &bytes[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_spelling_of_json_without_repeated_keys_is_never_overrated() {
        let texts = [
            r#"{ "a" : [1.50, -2e3, true, null], "b": { } }"#,
            r#""\u00e9\u4e2d\/\n\ud83d\ude00 \"x\" [1] \\""#,
            "[]",
            "[[], [[]], \"\"]",
        ];
        for text in texts {
            let json = parse(text.as_bytes()).unwrap();
            let least = shortest(text.as_bytes());
            assert!(least <= json.len() && least > 0, "{text}: {least}, {}", json.len());
        }
        assert_eq!(shortest(br#"[ "a b" ,  "c" ]"#), r#"["a b","c"]"#.len());
    }
}
