//! Questions to people, and the form of their answers.

use serde_json::{Map, Value, json};

use super::{
    exit::Stop,
    render::{command, printable},
};
use crate::{
    engine::{RunView, WaitingOn},
    operator::HUMAN,
    store::RunStatus,
};

/// The maximum number of waits that a line names.
const NAMED: usize = 3;

/// Returns true if only people can move the run: it waits for nothing that comes by itself. For a task
/// that somebody has to act on (an answer, a worker, a session), the line names the command.
pub fn only_people_left(run: &RunView) -> bool {
    let rests = match run.status {
        RunStatus::Waiting | RunStatus::Paused => true,
        RunStatus::Queued
        | RunStatus::Running
        | RunStatus::Compensating
        | RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Canceled => false,
    };
    rests
        && !run.waiting_on.is_empty()
        && run.waiting_on.iter().all(|on| match on.kind.as_str() {
            "task" => is_for_somebody(on),
            "signal" => on.until.is_none(),
            "resume" => true,
            _ => false,
        })
}

/// Returns true if a task waits for a person's answer.
fn is_for_a_person(on: &WaitingOn) -> bool {
    on.subject.operator_kind.as_deref() == Some(HUMAN)
}

/// Returns true if a task waits for a person, for a worker that is not running, or for a session
/// that is not connected.
fn is_for_somebody(on: &WaitingOn) -> bool {
    let away = on.subject.session.as_ref().is_some_and(|session| session.state != "connected");
    is_for_a_person(on) || away || on.subject.served == Some(false)
}

/// Returns the waits of a run, in a few words.
pub fn wanted(run: &RunView) -> String {
    let one = |on: &WaitingOn| match on.kind.as_str() {
        "task" if !is_for_a_person(on) && is_for_somebody(on) => match command(run, on) {
            Some(command) => format!("{on}; start it with `{command}`"),
            None => on.to_string(),
        },
        "task" => format!("an answer to {}", on.to_string().trim_end_matches(" (human)")),
        "resume" => "somebody to resume it".to_owned(),
        _ => on.to_string(),
    };
    let all: Vec<_> = run.waiting_on.iter().take(NAMED).map(one).collect();
    let more = match run.waiting_on.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    printable(&format!("{}{more}", all.join(", ")))
}

/// Returns true if a yes or no answers a task whose answers have this schema.
pub fn is_approval(schema: Option<&Value>) -> bool {
    approval(schema, None).is_ok()
}

/// A yes that fits the schema: the keys that it has, and no others.
///
/// # Errors
/// A schema that a yes does not fit.
pub fn approval(schema: Option<&Value>, note: Option<&str>) -> Result<Value, Stop> {
    let Some(schema) = schema.filter(|schema| schema.is_object()) else {
        return Ok(match note {
            Some(note) => json!({"approved": true, "note": note}),
            None => json!({"approved": true}),
        });
    };
    if schema.get("type").is_some_and(|name| name == "boolean") {
        return Ok(Value::Bool(true));
    }
    let has = |key: &str| schema.pointer(&format!("/properties/{key}")).is_some();
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|keys| keys.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut yes = Map::new();
    if has("approved") {
        yes.insert("approved".to_owned(), Value::Bool(true));
    }
    if has("note") && (note.is_some() || required.contains(&"note")) {
        yes.insert("note".to_owned(), Value::from(note.unwrap_or_default()));
    }
    if !yes.contains_key("approved") || required.iter().any(|key| !yes.contains_key(*key)) {
        return Err(Stop::usage("the task wants more than a yes")
            .next("`moonswarm answer TASK JSON`; `moonswarm inbox TASK` shows what it wants"));
    }
    Ok(Value::Object(yes))
}

/// Returns the answer to a task from a typed line: `y`, `n`, or a value.
pub fn typed(line: &str, schema: Option<&Value>) -> Option<Value> {
    if line.is_empty() {
        return None;
    }
    if is_approval(schema) {
        match line.to_lowercase().as_str() {
            "y" | "yes" => return approval(schema, None).ok().map(|yes| json!({"output": yes})),
            "n" | "no" => return Some(json!({"reject": "rejected at the terminal"})),
            _ => {}
        }
    }
    let value = serde_json::from_str(line).unwrap_or_else(|_| Value::from(line));
    Some(json!({"output": value}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SessionWait;
    use crate::{cli::fixture, engine::Subject};

    /// `ship (human)` is a task of people, `coder (queue)` one of a queue.
    fn subject(what: &str) -> Subject {
        let (name, operator) = match what.strip_suffix(')').and_then(|it| it.split_once(" (")) {
            Some((name, operator)) => (name, Some(operator.to_owned())),
            None => (what, None),
        };
        let operator_kind = operator.clone();
        Subject { name: Some(name.into()), operator, operator_kind, ..Subject::default() }
    }

    fn waiting(on: &[(&str, &str, Option<&str>)]) -> RunView {
        let one = |(kind, what, until): &(&str, &str, Option<&str>)| WaitingOn {
            kind: (*kind).into(),
            subject: subject(what),
            since: String::new(),
            until: until.map(str::to_owned),
        };
        RunView { waiting_on: on.iter().map(one).collect(), ..fixture::run(RunStatus::Waiting) }
    }

    #[test]
    fn a_timer_or_a_worker_is_not_a_person() {
        let ship = ("task", "ship (human)", None);
        assert!(only_people_left(&waiting(&[ship, ("signal", "go", None)])));
        assert!(!only_people_left(&waiting(&[ship, ("timer", "5m", Some("later"))])));
        assert!(!only_people_left(&waiting(&[("task", "coder (queue)", None)])));
        assert!(!only_people_left(&waiting(&[("signal", "go", Some("later"))])));
        assert!(!only_people_left(&waiting(&[])));
        let mut alone = waiting(&[("task", "coder (queue)", None)]);
        alone.waiting_on[0].subject.served = Some(false);
        assert!(only_people_left(&alone));
        for state in ["away", "closed", "none", "several", "connected"] {
            let mut away = waiting(&[("task", "coder (main-ai)", None)]);
            let session = SessionWait { state: state.into(), id: None, open: None };
            away.waiting_on[0].subject.session = Some(session);
            assert_eq!(only_people_left(&away), state != "connected", "{state}");
        }
        let running = RunView { status: RunStatus::Running, ..waiting(&[ship]) };
        assert!(!only_people_left(&running));
    }

    #[test]
    fn what_is_wanted_is_named_up_to_a_few() {
        let (ship, go) = (("task", "ship (human)", None), ("signal", "go", None));
        assert_eq!(wanted(&waiting(&[go])), "signal \"go\"");
        assert_eq!(wanted(&waiting(&[ship, go])), "an answer to ship, signal \"go\"");
        let paused = ("resume", "the replay differs", None);
        assert_eq!(
            wanted(&waiting(&[paused, ship, go, go, go])),
            "somebody to resume it, an answer to ship, signal \"go\" and 2 more"
        );
    }

    #[test]
    fn a_yes_has_the_keys_that_the_schema_has() {
        let schema = json!({"type": "object", "required": ["approved"],
            "properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}}});
        assert_eq!(approval(Some(&schema), None).unwrap(), json!({"approved": true}));
        assert_eq!(
            approval(Some(&schema), Some("fine")).unwrap(),
            json!({"approved": true, "note": "fine"})
        );
        let bare = json!({"type": "object", "properties": {"approved": {"type": "boolean"}}});
        assert_eq!(approval(Some(&bare), Some("fine")).unwrap(), json!({"approved": true}));
        assert_eq!(approval(Some(&json!({"type": "boolean"})), None).unwrap(), json!(true));
        assert_eq!(approval(None, None).unwrap(), json!({"approved": true}));
    }

    #[test]
    fn a_task_that_wants_more_than_a_yes_says_so() {
        let schema = json!({"type": "object", "required": ["approved", "budget"],
            "properties": {"approved": {"type": "boolean"}, "budget": {"type": "number"}}});
        assert!(approval(Some(&schema), None).is_err());
        assert!(!is_approval(Some(&json!({"type": "string"}))));
    }

    #[test]
    fn a_typed_line_is_a_decision_or_a_value() {
        assert_eq!(typed("y", None), Some(json!({"output": {"approved": true}})));
        assert_eq!(typed("No", None), Some(json!({"reject": "rejected at the terminal"})));
        let text = json!({"type": "string"});
        assert_eq!(typed("y", Some(&text)), Some(json!({"output": "y"})));
        assert_eq!(typed("[1]", Some(&text)), Some(json!({"output": [1]})));
        assert_eq!(typed("", None), None);
    }
}
