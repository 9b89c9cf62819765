//! Assembles the pieces of models' answers into lines.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::text::printable;
use crate::{
    engine::EventView,
    protocol::{ModelDelta, TextLane},
};

/// A line that nobody ends is ended at this many characters, at a space if there is one.
const WIDE: usize = 100;
/// Steps that are heard at a time; who begins to speak beyond them is not.
const VOICES: usize = 1_000;

/// The text of the models of a run in progress.
#[derive(Debug, Default)]
pub struct LiveText {
    voices: BTreeMap<u32, Voice>,
}

/// One model in the middle of its answer.
#[derive(Debug)]
struct Voice {
    attempt: u32,
    agent: String,
    manner: Manner,
    line: String,
    /// The number of the next piece that was not heard yet.
    next: u64,
    /// Which text was heard last, and how many bytes of it.
    heard: Option<(TextLane, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Says,
    Thinks,
    Calls,
}

#[derive(Deserialize)]
struct Piece {
    step: u32,
    attempt: u32,
    n: Option<u64>,
    /// Of several in one: the number of the first, and the bytes of its text before it.
    first: Option<u64>,
    at: Option<usize>,
    agent: String,
    delta: ModelDelta,
}

impl LiveText {
    /// Returns true if an event is a piece of an answer.
    pub fn is_piece(event: &EventView) -> bool {
        event.kind == "model.delta"
    }

    /// Takes an event of the run; gives the lines that are whole now.
    pub fn hear(&mut self, event: &EventView) -> Vec<String> {
        if Self::is_piece(event) {
            return event.data.decode().map(|piece| self.take(piece)).unwrap_or_default();
        }
        let ends = matches!(
            event.kind.as_str(),
            "step.completed" | "step.failed" | "step.canceled" | "attempt.failed"
        );
        if event.kind == "run.ended" {
            let voices = std::mem::take(&mut self.voices);
            return voices.into_values().filter_map(|mut voice| voice.end()).collect();
        }
        if !ends || self.voices.is_empty() {
            return Vec::new();
        }
        let step = event.data.to_value()["step"].as_u64();
        let voice = step.and_then(|step| self.voices.remove(&u32::try_from(step).ok()?));
        voice.and_then(|mut voice| voice.end()).into_iter().collect()
    }

    /// The line that a step's model is in the middle of.
    pub fn tail(&self, step: u32) -> Option<String> {
        let voice = self.voices.get(&step).filter(|voice| !voice.line.trim().is_empty())?;
        let before = match voice.manner {
            Manner::Says => "",
            Manner::Thinks => "thinks: ",
            Manner::Calls => "calls ",
        };
        Some(format!("{before}{}", printable(voice.line.trim())))
    }

    fn take(&mut self, piece: Piece) -> Vec<String> {
        let Piece { step, attempt, n, first, at, agent, delta } = piece;
        if !self.voices.contains_key(&step) && self.voices.len() == VOICES {
            return Vec::new();
        }
        let (manner, line) = (Manner::Says, String::new());
        let fresh = || Voice { attempt, agent, manner, line, next: 0, heard: None };
        let voice = self.voices.entry(step).or_insert_with(fresh);
        let mut lines = Vec::new();
        if voice.attempt != attempt {
            lines.extend(voice.end());
            (voice.attempt, voice.next, voice.heard) = (attempt, 0, None);
        }
        // Who connects anew is told once more what was said.
        let Some(known) = voice.known(n, first, at, &delta) else { return lines };
        let (manner, text) = match &delta {
            ModelDelta::Item { begins, .. } => {
                lines.extend(voice.end());
                let name = begins["name"].as_str().filter(|_| begins["type"] == "function_call");
                match name {
                    Some(name) => (Manner::Calls, format!("{name} ")),
                    None => return lines,
                }
            }
            ModelDelta::Text { delta, .. } | ModelDelta::Refusal { delta, .. } => {
                (Manner::Says, delta.clone())
            }
            ModelDelta::Reasoning { delta, .. } | ModelDelta::ReasoningSummary { delta, .. } => {
                (Manner::Thinks, delta.clone())
            }
            ModelDelta::Arguments { delta, .. } => (Manner::Calls, delta.clone()),
            ModelDelta::Done { .. } => {
                lines.extend(voice.end());
                return lines;
            }
        };
        if voice.manner != manner {
            lines.extend(voice.end());
            voice.manner = manner;
        }
        voice.line.push_str(text.get(known..).unwrap_or(&text));
        lines.extend(voice.whole());
        lines
    }
}

impl Voice {
    /// Returns the number of bytes of a piece that were already received; none if all were.
    fn known(
        &mut self,
        n: Option<u64>,
        first: Option<u64>,
        at: Option<usize>,
        delta: &ModelDelta,
    ) -> Option<usize> {
        let n = n.unwrap_or(self.next);
        if n < self.next {
            return None;
        }
        let again = first.is_some_and(|first| first < self.next);
        self.next = n + 1;
        let Some((lane, bytes)) = delta.text().map(|(lane, text)| (lane, text.len())) else {
            self.heard = None;
            return Some(0);
        };
        let heard = self.heard.filter(|(last, _)| *last == lane).map_or(0, |(_, heard)| heard);
        match at.filter(|_| again) {
            Some(at) => {
                self.heard = Some((lane, at + bytes));
                Some(heard.saturating_sub(at))
            }
            None => {
                self.heard = Some((lane, heard + bytes));
                Some(0)
            }
        }
    }

    /// The lines that are whole.
    fn whole(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let (end, next) = match self.line.find('\n') {
                Some(end) => (end, end + 1),
                None => {
                    let Some((wide, _)) = self.line.char_indices().nth(WIDE) else { return lines };
                    match self.line[..wide].rfind(' ') {
                        Some(end) if end > 0 => (end, end + 1),
                        _ => (wide, wide),
                    }
                }
            };
            let rest = self.line.split_off(next);
            let mut line = std::mem::replace(&mut self.line, rest);
            line.truncate(end);
            lines.extend(self.shown(&line));
        }
    }

    /// Returns the rest of its line.
    fn end(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        self.shown(&line)
    }

    fn shown(&self, line: &str) -> Option<String> {
        let line = printable(line.trim_end());
        if line.trim().is_empty() {
            return None;
        }
        let agent = printable(&self.agent);
        Some(match self.manner {
            Manner::Says => format!("{agent}: {line}"),
            Manner::Thinks => format!("{agent} thinks: {line}"),
            Manner::Calls => format!("{agent} calls {line}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(kind: &str, data: Value) -> EventView {
        EventView { seq: None, kind: kind.into(), at: String::new(), data: data.into() }
    }

    fn piece(step: u32, attempt: u32, delta: Value) -> EventView {
        let agent = format!("agent{step}");
        let data = json!({ "step": step, "attempt": attempt, "agent": agent, "delta": delta });
        event("model.delta", data)
    }

    fn text(step: u32, text: &str) -> EventView {
        piece(step, 1, json!({ "type": "text", "item": 0, "part": 0, "delta": text }))
    }

    #[test]
    fn pieces_of_two_models_become_lines_of_each() {
        let mut said = LiveText::default();
        assert!(said.hear(&text(1, "Hel")).is_empty());
        assert!(said.hear(&text(2, "Other ")).is_empty());
        assert_eq!(said.hear(&text(1, "lo,\nwor\u{1b}[2Jld")), ["agent1: Hello,"]);
        assert_eq!(said.tail(1).as_deref(), Some("wor [2Jld"));
        assert_eq!(
            said.hear(&event("step.completed", json!({ "step": 1 }))),
            ["agent1: wor [2Jld"]
        );
        assert_eq!(said.tail(1), None);
        assert_eq!(said.hear(&event("run.ended", json!({}))), ["agent2: Other"]);
    }

    #[test]
    fn thoughts_and_calls_are_told_apart() {
        let mut said = LiveText::default();
        let think = json!({ "type": "reasoning", "item": 0, "part": 0, "delta": "hm" });
        let call = json!({ "type": "item", "item": 1,
            "begins": { "type": "function_call", "name": "read" } });
        let argue = json!({ "type": "arguments", "item": 1, "delta": "{\"at\":1}" });
        assert!(said.hear(&piece(1, 1, think)).is_empty());
        assert_eq!(said.tail(1).as_deref(), Some("thinks: hm"));
        assert_eq!(said.hear(&piece(1, 1, call)), ["agent1 thinks: hm"]);
        assert!(said.hear(&piece(1, 1, argue)).is_empty());
        assert_eq!(said.tail(1).as_deref(), Some("calls read {\"at\":1}"));
        let again = json!({ "type": "text", "item": 0, "part": 0, "delta": "x" });
        assert_eq!(said.hear(&piece(1, 2, again)), ["agent1 calls read {\"at\":1}"]);
    }

    #[test]
    fn what_is_told_once_more_after_a_break_is_said_once() {
        let numbered = |n: u64, joined: Option<(u64, usize)>, words: &str| {
            let delta = json!({ "type": "text", "item": 0, "part": 0, "delta": words });
            let mut data = json!({ "step": 1, "attempt": 1, "n": n, "agent": "a", "delta": delta });
            if let Some((first, at)) = joined {
                (data["first"], data["at"]) = (first.into(), at.into());
            }
            event("model.delta", data)
        };
        let mut said = LiveText::default();
        assert!(said.hear(&numbered(0, None, "one ")).is_empty());
        assert!(said.hear(&numbered(1, None, "two ")).is_empty());
        assert!(said.hear(&numbered(1, Some((0, 0)), "one two ")).is_empty());
        assert!(said.hear(&numbered(3, Some((0, 0)), "one two three four ")).is_empty());
        assert!(said.hear(&numbered(5, Some((3, 14)), "four five six\n")).len() == 1);
        let mut late = LiveText::default();
        assert!(late.hear(&numbered(3, Some((0, 0)), "one two three four ")).is_empty());
        let lines = late.hear(&numbered(4, None, "five\n"));
        assert_eq!(lines, ["a: one two three four five"]);
    }

    #[test]
    fn a_line_without_an_end_is_ended_at_a_space() {
        let mut said = LiveText::default();
        let lines = said.hear(&text(1, &"word ".repeat(30)));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), "agent1: ".len() + 99);
        let lines = said.hear(&text(2, &"x".repeat(250)));
        assert_eq!(lines.len(), 2);
    }
}
