//! The events of a run as sentences.

use std::collections::HashMap;

use console::Style;
use serde_json::Value;

use super::text::printable;
use crate::{engine::EventView, journal};

/// Characters of a value that a line has room for.
const VALUE: usize = 60;
/// Files of a step that a line has room for.
const FILES: usize = 3;
/// Open steps whose names are remembered; those beyond are shown by number.
const NAMES: usize = 10_000;

/// Prints the events of a run, one line each.
#[derive(Debug)]
pub struct Story {
    names: HashMap<u64, String>,
    colors: bool,
}

/// Returns the text of a model before an event, on one line.
pub fn said_line(before: &EventView, line: &str) -> String {
    format!("{}     ~ {line}", time(before))
}

fn time(it: &EventView) -> &str {
    it.at.get(11..23).unwrap_or(&it.at)
}

impl Story {
    /// Has told nothing yet.
    pub fn new(colors: bool) -> Self {
        Self { names: HashMap::new(), colors }
    }

    /// Time, number and sentence of an event.
    pub fn line(&mut self, it: &EventView) -> String {
        let seq = it.seq.map_or_else(|| "~".to_owned(), |seq| seq.to_string());
        let data = it.data.to_value();
        let sentence = self.sentence(&it.kind, &data);
        let kind = it.kind.as_str();
        let style = match data["status"].as_str().unwrap_or(kind) {
            "step.failed" | "attempt.failed" | "failed" | "problem" => Style::new().red(),
            "step.completed" | "completed" => Style::new().green(),
            "step.scheduled" | "attempt.opened" => Style::new().dim(),
            _ => Style::new(),
        };
        let style = style.force_styling(self.colors);
        if let Some(step) = data["step"].as_u64()
            && matches!(kind, "step.completed" | "step.failed" | "step.canceled")
        {
            self.names.remove(&step);
        }
        format!("{} {seq:>5} {}", time(it), style.apply_to(sentence))
    }

    fn sentence(&mut self, kind: &str, data: &Value) -> String {
        let text = |key: &str| data[key].as_str().map(printable).filter(|it| !it.is_empty());
        let or = |key: &str, other: &str| text(key).unwrap_or_else(|| other.to_owned());
        let by = || text("by").map_or_else(String::new, |by| format!(" by {by}"));
        let why = || text("reason").map_or_else(String::new, |why| format!(": {why}"));
        let step = self.step(data);
        match kind {
            "run.started" => {
                let hash: String = or("hash", "").chars().take(8).collect();
                let how = data["trigger"]["kind"].as_str().map(printable);
                let how = how.map_or_else(String::new, |how| format!(" ({how})"));
                format!("run of {}@{hash} started{}{how}", or("blueprint", "?"), by())
            }
            "run.continued" => format!("run of {} begins a new history", or("blueprint", "?")),
            "run.ended" => format!("run {}{}", or("status", "ended"), outcome(data)),
            "run.cancel_requested" => format!("cancel requested{}{}", by(), why()),
            "run.paused" => format!("paused{}{}", by(), why()),
            "run.resumed" => format!("resumed{}", by()),
            "run.compensating" => "compensations begin".to_owned(),
            "run.copied" => format!("copied from {}{}", or("from", "another run"), by()),
            "step.scheduled" => format!("{step} scheduled"),
            "step.started" => format!("{step} started{}", attempt(data)),
            "attempt.failed" => {
                let again = data["retry_at"].as_str().and_then(|at| at.get(11..19));
                let again = again.map_or_else(String::new, |at| format!(", again at {at}"));
                let number = data["attempt"].as_u64().unwrap_or(1);
                format!("{step} attempt {number} failed{}{again}", outcome(data))
            }
            "attempt.opened" => format!("{step} is tried again{}", attempt(data)),
            "step.completed" => format!("{step} completed{}{}", outcome(data), files(data)),
            "step.failed" => format!("{step} failed{}", outcome(data)),
            "step.canceled" => format!("{step} canceled{}", why()),
            "step.escalated" => {
                format!("{step} asks a senior: {}", question(&data["question"]))
            }
            "step.advised" => format!("{step} was answered{}: {}", by(), value(&data["answer"])),
            "signal" => format!("signal {} arrived: {}", or("name", "?"), value(&data["payload"])),
            "status" => format!("status: {}", or("text", "")),
            "log" => format!("{}: {}", or("level", "info"), or("message", "")),
            "event" => format!("event {}: {}", or("topic", "?"), value(&data["data"])),
            "seat.taken" => {
                format!("{} took the seat of {}", or("session", "?"), or("operator", "?"))
            }
            "session.joined" => {
                let name = or("session", "?");
                // A pull worker joins as well, where somebody else stands behind its name.
                let is_session = name.starts_with(journal::SESSION);
                format!("{} {name} joined", if is_session { "session" } else { "worker" })
            }
            "task.answered" | "task_answered" => {
                format!("{step} answered{}: {}", by(), value(&data["output"]))
            }
            "task.reminded" | "task_reminder" => format!("{step} reminder {}", data["count"]),
            "task.expired" | "task_expired" => format!("{step} expired{}", by()),
            "secret.accessed" => format!("{step} used a secret"),
            _ if data.is_null() => kind.to_owned(),
            _ => format!("{kind} {}", value(data)),
        }
    }

    /// The step that an event is about, by number and name.
    fn step(&mut self, data: &Value) -> String {
        let Some(number) = data["step"].as_u64() else { return "a step".to_owned() };
        if let Some(name) = data["name"].as_str().map(printable) {
            let name = match data["kind"].as_str() {
                Some("task" | "state" | "local") | None => name,
                Some(kind) if kind == name => name,
                Some(kind) => format!("{} {name}", printable(kind)),
            };
            let name = match data["summary"].as_str().filter(|text| !text.is_empty()) {
                Some(summary) => format!("{name} · {}", printable(summary)),
                None => name,
            };
            if self.names.len() < NAMES {
                self.names.insert(number, name);
            }
        }
        match self.names.get(&number) {
            Some(name) => format!("#{number} {name}"),
            None => format!("#{number}"),
        }
    }
}

fn attempt(data: &Value) -> String {
    match data["attempt"].as_u64() {
        Some(number) if number > 1 => format!(", attempt {number}"),
        Some(_) | None => String::new(),
    }
}

/// Returns the error or the output.
fn outcome(data: &Value) -> String {
    let error = &data["error"];
    match (error["kind"].as_str(), error["message"].as_str(), &data["output"]) {
        (Some(kind), Some(message), _) => format!(": {}: {}", printable(kind), printable(message)),
        (_, _, Value::Null) => String::new(),
        (_, _, output) => format!(": {}", value(output)),
    }
}

/// The files that came with a result, by their names.
fn files(data: &Value) -> String {
    let files = data["artifacts"].as_array().map_or(&[][..], Vec::as_slice);
    let names = files.iter().filter_map(|file| file["name"].as_str()).map(printable);
    let names: Vec<String> = names.take(FILES).collect();
    let more = data["artifacts_total"].as_u64().unwrap_or(files.len() as u64);
    match (names.as_slice(), more.saturating_sub(names.len() as u64)) {
        ([], _) => String::new(),
        (names, 0) => format!(" [{}]", names.join(", ")),
        (names, more) => format!(" [{} and {more} more]", names.join(", ")),
    }
}

/// Returns the text of a question to a senior, with its data if it has any.
fn question(asked: &Value) -> String {
    match (asked["question"].as_str(), &asked["data"]) {
        (Some(_), Value::Null) => value(&asked["question"]),
        (Some(_), data) => format!("{} (with {})", value(&asked["question"]), value(data)),
        (None, _) => value(asked),
    }
}

fn value(value: &Value) -> String {
    let text = match value {
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    };
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Json;

    fn event(seq: Option<u32>, kind: &str, data: &str) -> EventView {
        let at = "2026-01-01T10:20:30.456Z".into();
        EventView { seq, kind: kind.into(), at, data: Json::parse(data).unwrap() }
    }

    #[test]
    fn a_pull_worker_that_joins_is_no_session() {
        let mut story = Story::new(false);
        let mut joined = |name: &str| {
            let data = format!(r#"{{"session":"{name}","party":"session/ses_1"}}"#);
            story.line(&event(Some(1), "session.joined", &data))
        };
        assert!(joined("ses_7").ends_with(" session ses_7 joined"));
        assert!(joined("admin/queue#1").ends_with(" worker admin/queue#1 joined"));
    }

    #[test]
    fn a_question_to_a_senior_is_its_text_and_its_data_if_it_has_any() {
        let mut story = Story::new(false);
        let mut asks = |question: &str| {
            let data = format!(r#"{{"step":1,"attempt":1,"question":{question}}}"#);
            story.line(&event(Some(1), "step.escalated", &data))
        };
        let plain = asks(r#"{"question":"Which branch?","data":null}"#);
        assert!(plain.ends_with("#1 asks a senior: Which branch?"), "{plain}");
        let more = asks(r#"{"question":"Which?","data":["a","b"]}"#);
        assert!(more.ends_with(r#"asks a senior: Which? (with ["a","b"])"#), "{more}");
        let other = asks(r#"{"why":1}"#);
        assert!(other.ends_with(r#"asks a senior: {"why":1}"#), "{other}");
    }

    #[test]
    fn events_are_sentences_with_the_name_of_the_step() {
        let mut story = Story::new(false);
        let mut shown = |seq, kind: &str, data: &str| story.line(&event(seq, kind, data));
        let lines = [
            shown(
                Some(1),
                "run.started",
                r#"{"blueprint":"review","hash":"3f2a91bcdd","trigger":{"kind":"cli"},"by":"admin"}"#,
            ),
            shown(
                Some(2),
                "step.scheduled",
                r#"{"step":1,"kind":"task","name":"coder","summary":"fix it"}"#,
            ),
            shown(Some(3), "step.started", r#"{"step":1,"attempt":1}"#),
            shown(
                Some(4),
                "attempt.failed",
                r#"{"step":1,"attempt":1,"error":{"kind":"process","message":"exit code 1"},"retry_at":"2026-01-01T10:20:40.000Z"}"#,
            ),
            shown(Some(5), "step.completed", r#"{"step":1,"attempt":2,"output":{"n":3}}"#),
            shown(
                Some(6),
                "step.completed",
                r#"{"step":2,"kind":"state","name":"state.add","output":7}"#,
            ),
            shown(
                Some(6),
                "step.completed",
                r#"{"step":1,"artifacts":[{"name":"a.md"},{"name":"b.md"}]}"#,
            ),
            shown(
                Some(6),
                "step.completed",
                r#"{"step":1,"artifacts_total":9,"artifacts":[{"name":"a"},{"name":"b"},{"name":"c"},{"name":"d"}]}"#,
            ),
            shown(Some(7), "log", r#"{"level":"warn","message":"odd\nname"}"#),
            shown(Some(8), "status", r#"{"text":"half way"}"#),
            shown(Some(9), "signal", r#"{"name":"go","payload":true}"#),
            shown(Some(10), "something.new", r#"{"a":1}"#),
            shown(
                Some(11),
                "run.ended",
                r#"{"status":"failed","error":{"kind":"red","message":"the tests fail"}}"#,
            ),
            shown(None, "progress", "null"),
        ];
        insta::assert_snapshot!(lines.join("\n"), @r#"
        10:20:30.456     1 run of review@3f2a91bc started by admin (cli)
        10:20:30.456     2 #1 coder · fix it scheduled
        10:20:30.456     3 #1 coder · fix it started
        10:20:30.456     4 #1 coder · fix it attempt 1 failed: process: exit code 1, again at 10:20:40
        10:20:30.456     5 #1 coder · fix it completed: {"n":3}
        10:20:30.456     6 #2 state.add completed: 7
        10:20:30.456     6 #1 completed [a.md, b.md]
        10:20:30.456     6 #1 completed [a, b, c and 6 more]
        10:20:30.456     7 warn: odd name
        10:20:30.456     8 status: half way
        10:20:30.456     9 signal go arrived: true
        10:20:30.456    10 something.new {"a":1}
        10:20:30.456    11 run failed: red: the tests fail
        10:20:30.456     ~ progress
        "#);
    }
}
