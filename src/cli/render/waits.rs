//! The waits of a run in words, and the command that moves it.

use std::borrow::Cow;

use crate::engine::{RunView, SessionWait, Subject, WaitingOn};

/// Returns the wait for a person: `ship (human)`, `signal "go"`.
pub fn what(on: &WaitingOn) -> String {
    let Subject { name, operator, served, question, session, run, scope, reason, .. } = &on.subject;
    if let Some(reason) = reason {
        return reason.clone();
    }
    let name = name.as_deref().unwrap_or_default();
    match on.kind.as_str() {
        "timer" => "a time".to_owned(),
        "memory" => "room: the host holds as much for its runs as it may".to_owned(),
        "signal" => format!("signal {name:?}"),
        "conversation" => {
            format!("another {name} in the conversation {}", scope.as_deref().unwrap_or_default())
        }
        "state" => format!("{name} in {}", scope.as_deref().unwrap_or_default()),
        "child" => match run {
            Some(run) => format!("run {run} ({name})"),
            None => format!("a run ({name})"),
        },
        _ => {
            let what = match question {
                Some(question) => format!("a senior's answer to {name}: {question}"),
                None => format!("{name} ({})", operator.as_deref().unwrap_or_default()),
            };
            if *served == Some(false) {
                return format!("{what}, which no worker takes");
            }
            match session {
                Some(session) => format!("{what} for {}", holder(session)),
                None => what,
            }
        }
    }
}

fn holder(session: &SessionWait) -> String {
    let id = session.id.as_deref().unwrap_or_default();
    match session.state.as_str() {
        "connected" => format!("session {id}"),
        "away" => format!("session {id}, which is not connected"),
        "closed" => format!("session {id}, which is closed"),
        "several" => format!("a seat: {} sessions are open", session.open.unwrap_or_default()),
        _ => "a session to open".to_owned(),
    }
}

/// Returns the waits of a run for the test of a blueprint: the data, and the words.
pub fn data(run: &RunView) -> Vec<serde_json::Value> {
    let one = |on: &WaitingOn| {
        let mut shown = serde_json::json!(on);
        shown["what"] = what(on).into();
        shown
    };
    run.waiting_on.iter().map(one).collect()
}

/// The command that would move a run.
pub fn command(run: &RunView, on: &WaitingOn) -> Option<String> {
    let Subject { task, name, operator, operator_kind, queue, labels, .. } = &on.subject;
    let name = name.as_deref().unwrap_or_default();
    match on.kind.as_str() {
        "resume" | "quarantine" => Some(format!("moonswarm resume {}", run.id)),
        "signal" => Some(format!("moonswarm signal {} {} '<json>'", run.id, word(name))),
        "child" => on.subject.run.map(|child| format!("moonswarm show {child}")),
        "task" => {
            let operator = operator.as_deref().unwrap_or_default();
            if on.subject.question.is_some() {
                return Some(format!("moonswarm advise {} '<json>'", (*task)?));
            }
            if let Some(session) = &on.subject.session {
                return match session.state.as_str() {
                    "connected" => None,
                    "none" => Some(format!("moonswarm sessions open {operator}")),
                    _ => Some(format!("moonswarm seat {} {operator} <session>", run.id)),
                };
            }
            if let Some(queue) = queue {
                let labels = labels.as_ref().map(ToString::to_string).unwrap_or_default();
                return Some(format!("moonswarm worker --queue {queue}{labels} -- <command>"));
            }
            match operator_kind.as_deref() {
                Some("human") => Some(format!("moonswarm approve {}", (*task)?)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A name as one word of a shell: a flow may call its signals as it likes.
fn word(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@');
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("'{}'", name.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, store::RunStatus};

    fn on(kind: &str, subject: serde_json::Value) -> WaitingOn {
        let subject = serde_json::from_value(subject).unwrap();
        WaitingOn { kind: kind.into(), subject, since: String::new(), until: None }
    }

    fn shown(kind: &str, subject: serde_json::Value) -> (String, Option<String>) {
        let run = fixture::run(RunStatus::Waiting);
        let on = on(kind, subject);
        let own = |command: String| command.replace(&run.id.to_string(), "RUN");
        (what(&on), command(&run, &on).map(own))
    }

    #[test]
    fn each_kind_has_its_words_and_the_command_that_moves_it() {
        let rows = [
            ("timer", serde_json::json!({}), "a time", None),
            (
                "signal",
                serde_json::json!({ "name": "it's on" }),
                "signal \"it's on\"",
                Some(r"moonswarm signal RUN 'it'\''s on' '<json>'"),
            ),
            ("resume", serde_json::json!({ "reason": "why" }), "why", Some("moonswarm resume RUN")),
            (
                "task",
                serde_json::json!({ "name": "build", "operator": "queue", "queue": "builds",
                    "operator_kind": "queue", "labels": { "gpu": "true" } }),
                "build (queue)",
                Some("moonswarm worker --queue builds --label gpu=true -- <command>"),
            ),
            (
                "task",
                serde_json::json!({ "name": "build", "operator": "queue", "queue": "builds",
                    "operator_kind": "queue", "served": false }),
                "build (queue), which no worker takes",
                Some("moonswarm worker --queue builds -- <command>"),
            ),
            (
                "task",
                serde_json::json!({ "name": "code", "operator": "main-ai",
                    "session": { "state": "none" } }),
                "code (main-ai) for a session to open",
                Some("moonswarm sessions open main-ai"),
            ),
            (
                "task",
                serde_json::json!({ "name": "code", "operator": "main-ai",
                    "session": { "state": "several", "open": 2 } }),
                "code (main-ai) for a seat: 2 sessions are open",
                Some("moonswarm seat RUN main-ai <session>"),
            ),
            (
                "capacity",
                serde_json::json!({ "name": "code", "operator": "echo" }),
                "code (echo)",
                None,
            ),
        ];
        for (kind, subject, words, command) in rows {
            assert_eq!(shown(kind, subject), (words.to_owned(), command.map(str::to_owned)));
        }
    }
}
