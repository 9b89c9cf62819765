//! The things that a run waits for, as data. The display adds words and commands.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    blueprint::Labels,
    operator::HUMAN,
    protocol::{RunId, TaskId},
};

/// One thing that a run waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(from = "Stored")]
pub struct WaitingOn {
    /// `task`, `capacity`, `retry`, `signal`, `timer`, `child`, `state`, `memory`, `conversation`,
    /// `resume`, `quarantine`.
    pub kind: String,
    /// The details.
    pub subject: Subject,
    /// RFC 3339, UTC.
    pub since: String,
    /// RFC 3339, UTC: when it ends by itself.
    pub until: Option<String>,
}

/// In words: `ship (human)`, `signal "go"`.
impl fmt::Display for WaitingOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { name, operator, served, question, session, run, scope, reason, .. } =
            &self.subject;
        if let Some(reason) = reason {
            return f.write_str(reason);
        }
        let name = name.as_deref().unwrap_or_default();
        match self.kind.as_str() {
            "timer" => f.write_str("a time"),
            "memory" => f.write_str("room: the host holds as much for its runs as it may"),
            "signal" => write!(f, "signal {name:?}"),
            "conversation" => {
                let scope = scope.as_deref().unwrap_or_default();
                write!(f, "another {name} in the conversation {scope}")
            }
            "state" => write!(f, "{name} in {}", scope.as_deref().unwrap_or_default()),
            "child" => match run {
                Some(run) => write!(f, "run {run} ({name})"),
                None => write!(f, "a run ({name})"),
            },
            _ => {
                match question {
                    Some(question) => write!(f, "a senior's answer to {name}: {question}")?,
                    None => write!(f, "{name} ({})", operator.as_deref().unwrap_or_default())?,
                }
                match session {
                    _ if *served == Some(false) => f.write_str(", which no worker takes"),
                    Some(session) => write!(f, " for {session}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for SessionWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.as_deref().unwrap_or_default();
        match self.state.as_str() {
            "connected" => write!(f, "session {id}"),
            "away" => write!(f, "session {id}, which is not connected"),
            "closed" => write!(f, "session {id}, which is closed"),
            "several" => {
                write!(f, "a seat: {} sessions are open", self.open.unwrap_or_default())
            }
            _ => f.write_str("a session to open"),
        }
    }
}

/// The details of a wait: the fields of its kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Subject {
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskId>,
    /// The name of an agent, a signal, a called blueprint or an operation on state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operator of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The kind of that operator: `human`, `queue`, `process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_kind: Option<String>,
    /// The queue in which the task waits for a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// False where no worker of that queue is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<bool>,
    /// The labels that a worker of that queue needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub labels: Option<Labels>,
    /// The attempt's question to a senior.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The session that the task waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionWait>,
    /// The called run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// The scope of an operation on state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The reason of the pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The session that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionWait {
    /// `connected`, `away`, `closed`, `none` (nobody has a session open), `several` (no seat says
    /// which).
    pub state: String,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The number of open ones, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<usize>,
}

/// The form in rows: those of earlier releases have a text instead of a subject.
#[derive(Deserialize)]
struct Stored {
    kind: String,
    subject: Option<Subject>,
    since: String,
    until: Option<String>,
    what: Option<String>,
    task: Option<TaskId>,
}

impl From<Stored> for WaitingOn {
    fn from(stored: Stored) -> Self {
        let Stored { kind, subject, since, until, what, task } = stored;
        let subject = subject.unwrap_or_else(|| {
            let by_people = what.as_ref().is_some_and(|what| what.ends_with("(human)"));
            let operator_kind = by_people.then(|| HUMAN.to_owned());
            Subject { task, operator_kind, reason: what, ..Subject::default() }
        });
        Self { kind, subject, since, until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_an_earlier_release_is_read() {
        let row = r#"[{"kind":"task","what":"ship (human)","task":null,
            "since":"2026-01-01T00:00:00.000Z","until":null,"command":"moonswarm approve x"}]"#;
        let [on]: [WaitingOn; 1] = serde_json::from_str(row).unwrap();
        assert_eq!(on.subject.reason.as_deref(), Some("ship (human)"));
        assert_eq!(on.subject.operator_kind.as_deref(), Some("human"));
        let again: WaitingOn = serde_json::from_str(&serde_json::to_string(&on).unwrap()).unwrap();
        assert_eq!(again, on);
    }
}
