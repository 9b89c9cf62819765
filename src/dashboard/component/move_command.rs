//! The command that moves a waiting run.

use crate::engine::{RunView, Subject, WaitingOn, shell, take_from};

/// Returns the command that would move a run.
pub fn move_command(run: &RunView, on: &WaitingOn) -> Option<String> {
    let Subject { task, name, operator, operator_kind, queue, labels, .. } = &on.subject;
    let name = name.as_deref().unwrap_or_default();
    match on.kind.as_str() {
        "resume" | "quarantine" => Some(format!("moonswarm resume {}", run.id)),
        "signal" => Some(format!("moonswarm signal {} {} '<json>'", run.id, shell::operand(name))),
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
                return Some(take_from(queue, &labels.clone().unwrap_or_default()));
            }
            match operator_kind.as_deref() {
                Some("human") => Some(format!("moonswarm approve {}", (*task)?)),
                _ => None,
            }
        }
        _ => None,
    }
}
