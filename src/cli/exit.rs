//! The end of the program: exit codes and the messages of failures.

use std::{fmt, io, process::ExitCode, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    engine::RunView,
    protocol::{Code, failure::kind, plain::indented},
    store::RunStatus,
};

/// The exit codes, which scripts may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded.
    Ok = 0,
    /// The run failed, or anything without a code of its own.
    Failed = 1,
    /// The command line or an input is wrong.
    Usage = 2,
    /// The blueprint has errors.
    Invalid = 3,
    /// There is no such thing.
    NotFound = 4,
    /// The token does not allow it.
    Denied = 5,
    /// The request conflicts with the current state, or somebody else holds what it needs.
    Conflict = 6,
    /// Time ran out.
    TimedOut = 7,
    /// The run was canceled.
    Canceled = 8,
    /// The run waits for a person.
    Waiting = 9,
    /// A budget or a limit is used up.
    Limit = 10,
    /// No daemon answers, or the host could store nothing any more.
    Unavailable = 69,
    /// Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The code of a run that is shown as it is now.
    pub fn of_run(run: &RunView) -> Self {
        match run.status {
            RunStatus::Completed => Self::Ok,
            RunStatus::Canceled => Self::Canceled,
            RunStatus::Failed => match run.error.as_ref().map(|error| error.kind.as_str()) {
                Some(kind::TIMEOUT) => Self::TimedOut,
                Some(kind::BUDGET | kind::LIMIT) => Self::Limit,
                Some(_) | None => Self::Failed,
            },
            RunStatus::Queued
            | RunStatus::Running
            | RunStatus::Waiting
            | RunStatus::Paused
            | RunStatus::Compensating => Self::Waiting,
        }
    }

    /// The word that stands for it where the daemon gave no code.
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Invalid => "blueprint_invalid",
            Self::NotFound => "not_found",
            Self::Denied => "denied",
            Self::Conflict => "conflict",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::Waiting => "waiting",
            Self::Limit => "limit",
            Self::Unavailable => "unavailable",
            Self::Interrupted => "interrupted",
        }
    }

    fn of_problem(status: u16, code: Option<Code>) -> Self {
        match (status, code) {
            (_, Some(Code::BlueprintInvalid)) => Self::Invalid,
            (401 | 403, _) => Self::Denied,
            (404 | 410, _) => Self::NotFound,
            (409 | 412, _) => Self::Conflict,
            (408 | 504, _) => Self::TimedOut,
            (413 | 429 | 507, _) => Self::Limit,
            (502 | 503, _) => Self::Unavailable,
            (400..500, _) => Self::Usage,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(it: Exit) -> Self {
        Self::from(it as u8)
    }
}

/// A failure with its exit code and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The end of the program.
    pub exit: Exit,
    /// The message.
    pub message: String,
    /// A stable code, where the daemon gave one.
    pub code: Option<String>,
    /// The command or the change that helps.
    pub next: Option<String>,
    /// The pause before the same request that the daemon asked for.
    pub retry_after: Option<Duration>,
}

impl Stop {
    /// A failure that ends the program with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), code: None, next: None, retry_after: None }
    }

    /// A wrong command line or input.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The same with what to do next.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Reads an answer that is not a success; `body` may be anything.
    pub fn from_response(status: u16, body: &str) -> Self {
        let problem: Problem = serde_json::from_str(body).unwrap_or_default();
        let code = problem.code.unwrap_or_else(|| format!("http_{status}"));
        let mut message = problem
            .detail
            .or(problem.title)
            .unwrap_or_else(|| format!("the daemon answered {status}"));
        // It may quote what somebody wrote.
        message = indented(&message, "    ");
        if let Some(path) = problem.path.as_ref().filter(|path| !message.contains(*path)) {
            message.push_str(&format!(" (at {path})"));
        }
        for breach in &problem.violations {
            let line = indented(&format!("{}: {}", breach.path, breach.message), "    ");
            if !message.contains(&line) {
                message.push_str(&format!("\n  {line}"));
            }
        }
        if !problem.findings.is_empty() {
            // The first of them is the detail, without its hint.
            "the blueprint cannot run:".clone_into(&mut message);
        }
        for finding in problem.findings.iter().filter(|it| it.is_error()) {
            message.push_str(&format!("\n  {}", indented(&finding.to_string(), "    ")));
        }
        let known = Code::of(&code);
        let next =
            known.and_then(|code| next_step(code, problem.what.as_deref())).map(str::to_owned);
        let exit = Exit::of_problem(status, known);
        Self { exit, message, code: Some(code), next, retry_after: None }
    }
}

impl Stop {
    /// The failure as JSON, as `--json` shows it.
    pub fn to_json(&self) -> Value {
        let Self { exit, message, code, next, .. } = self;
        let code = code.as_deref().unwrap_or_else(|| exit.word());
        json!({"error": {"code": code, "message": message, "next": next, "exit": *exit as u8}})
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(code) = &self.code {
            write!(f, " [{code}]")?;
        }
        match &self.next {
            Some(next) => write!(f, "\n  next: {next}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Stop {}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: Option<String>,
    code: Option<String>,
    detail: Option<String>,
    what: Option<String>,
    path: Option<String>,
    violations: Vec<PlaceInValue>,
    findings: Vec<PlaceInFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PlaceInValue {
    path: String,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PlaceInFile {
    file: String,
    line: u32,
    column: u32,
    code: String,
    severity: String,
    message: String,
    hint: Option<String>,
}

impl PlaceInFile {
    /// Returns true if it is why the blueprint cannot run; a daemon that says nothing of it sends
    /// errors.
    fn is_error(&self) -> bool {
        !matches!(self.severity.as_str(), "warning" | "note")
    }
}

impl fmt::Display for PlaceInFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, code, message, hint, .. } = self;
        write!(f, "{file}:{line}:{column}: [{code}] {message}")?;
        match hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

fn next_step(code: Code, what: Option<&str>) -> Option<&'static str> {
    Some(match code {
        Code::NotFound => return Some(where_listed(what)),
        Code::BlueprintInvalid => "`moonswarm check FILE` shows every finding in its place",
        Code::InvalidInput => "give the input the blueprint asks for: `-i JSON` or key=value",
        Code::InvalidResult => "`moonswarm show TASK` shows the form that the answer must have",
        Code::Unauthenticated | Code::TokenRevoked => {
            "pass --token or MOONSWARM_TOKEN; the admin's token is admin.token in the data directory"
        }
        Code::ForbiddenVerb | Code::ForbiddenScope | Code::Forbidden => {
            "use a token that allows it: `moonswarm token mint`"
        }
        Code::StaleTask => {
            "it has changed: look at it again with `moonswarm show TASK`, then answer"
        }
        Code::AlreadyAnswered => "somebody else must answer: `moonswarm show TASK` says how many",
        Code::Fenced | Code::AlreadyAccepted => "somebody else was first: `moonswarm show RUN`",
        Code::RunClosed => "`moonswarm show RUN` shows how it ended",
        Code::StorageFull => "free disk space; the daemon then continues by itself",
        Code::StorageLocked => "end the program that has the database open for writing",
        Code::StorageAway => "start the database; the daemon then continues by itself",
        Code::Damaged => "restore the row from a backup, then `moonswarm resume RUN`",
        Code::Stopping => "the daemon is stopping: start it again with `moonswarm serve`",
        _ => return None,
    })
}

/// The command that lists things of the kind that was not found.
fn where_listed(what: Option<&str>) -> &'static str {
    match what.unwrap_or_default() {
        "token" => "`moonswarm token ls` lists the tokens",
        "state" => "`moonswarm state -s SCOPE ls` lists the keys of a scope",
        "session" | "open session" => "`moonswarm sessions` lists the open sessions",
        "operator" => "`moonswarm operators` lists them",
        "task" => "`moonswarm inbox --all` lists the open tasks",
        "artifact" => "`moonswarm artifacts RUN` lists the files of a run",
        "step" => "`moonswarm show RUN --all` shows every step with its number",
        "blueprint" => {
            "`moonswarm blueprints` lists the names; a file runs with `moonswarm run ./FILE.lua`"
        }
        "trigger" => "`moonswarm blueprints` lists the names and what starts them",
        _ => "`moonswarm ps` lists runs, `moonswarm inbox` open tasks",
    }
}

/// The exit code of a failure, and the failure itself; a closed pipe is nobody's failure.
pub fn judge(error: &anyhow::Error) -> (Exit, Option<Stop>) {
    if let Some(stop) = error.chain().find_map(|cause| cause.downcast_ref::<Stop>()) {
        return (stop.exit, Some(stop.clone()));
    }
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    if io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe) {
        return (Exit::Ok, None);
    }
    let message = indented(&format!("{error:#}"), "    ");
    (Exit::Failed, Some(Stop::new(Exit::Failed, message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, engine::FailureView};

    fn failed(kind: &str) -> RunView {
        let error = FailureView {
            kind: kind.into(),
            message: String::new(),
            step: None,
            agent: None,
            attempt: None,
            retryable: false,
            data: None,
        };
        RunView { error: Some(error), ..fixture::run(RunStatus::Failed) }
    }

    #[test]
    fn a_run_ends_the_program_with_the_code_of_its_end() {
        assert_eq!(Exit::of_run(&fixture::run(RunStatus::Completed)), Exit::Ok);
        assert_eq!(Exit::of_run(&fixture::run(RunStatus::Canceled)), Exit::Canceled);
        assert_eq!(Exit::of_run(&fixture::run(RunStatus::Waiting)), Exit::Waiting);
        assert_eq!(Exit::of_run(&failed("timeout")), Exit::TimedOut);
        assert_eq!(Exit::of_run(&failed("limit")), Exit::Limit);
        assert_eq!(Exit::of_run(&failed("blocked")), Exit::Failed);
    }

    #[test]
    fn a_problem_keeps_its_code_and_says_what_to_do() {
        let body = r#"{"title":"Conflict","code":"run_closed","detail":"the run has ended"}"#;
        let stop = Stop::from_response(409, body);
        assert_eq!(stop.exit, Exit::Conflict);
        assert_eq!(
            stop.to_string(),
            "the run has ended [run_closed]\n  next: `moonswarm show RUN` shows how it ended"
        );
    }

    #[test]
    fn every_kind_of_answer_has_its_code() {
        let exit = |status, code: &str| {
            Stop::from_response(status, &format!(r#"{{"code":"{code}"}}"#)).exit
        };
        assert_eq!(exit(422, "blueprint_invalid"), Exit::Invalid);
        assert_eq!(exit(422, "invalid_input"), Exit::Usage);
        assert_eq!(exit(401, "unauthenticated"), Exit::Denied);
        assert_eq!(exit(404, "not_found"), Exit::NotFound);
        assert_eq!(exit(429, "signal_queue_full"), Exit::Limit);
        assert_eq!(exit(503, "stopping"), Exit::Unavailable);
        assert_eq!(exit(500, "storage"), Exit::Failed);
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_still_told() {
        let stop = Stop::from_response(502, "<html>bad gateway</html>");
        assert_eq!((stop.exit, stop.code.as_deref()), (Exit::Unavailable, Some("http_502")));
    }

    #[test]
    fn the_next_step_is_where_the_missing_thing_is_listed() {
        let next = |what: &str| {
            let body =
                json!({"code": "not_found", "what": what, "detail": "there is no such thing"});
            Stop::from_response(404, &body.to_string()).next.unwrap()
        };
        assert!(next("token").contains("token ls"));
        assert!(next("state").contains("-s SCOPE ls"));
        assert!(next("trigger").contains("moonswarm blueprints"));
        assert!(next("run").contains("moonswarm ps"));
        assert!(next("blueprint").contains("moonswarm run ./FILE.lua"));
    }

    #[test]
    fn a_failure_is_json_for_scripts() {
        let stop = Stop::usage("no file x").next("name one");
        let error = json!({"code": "usage", "message": "no file x", "next": "name one", "exit": 2});
        assert_eq!(stop.to_json(), json!({ "error": error }));
        let error = anyhow::anyhow!("odd").context("try");
        let (exit, stop) = judge(&error);
        assert_eq!(
            (exit, stop.unwrap().to_json()["error"]["code"].clone()),
            (Exit::Failed, json!("failed"))
        );
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(judge(&error.context("print")), (Exit::Ok, None));
    }
}
