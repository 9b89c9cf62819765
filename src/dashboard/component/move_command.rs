//! The command that moves a waiting run.

use std::borrow::Cow;

use crate::engine::{RunView, Subject, WaitingOn};

/// Returns the command that would move a run.
pub fn move_command(run: &RunView, on: &WaitingOn) -> Option<String> {
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
