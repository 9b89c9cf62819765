//! What models say while they answer: pieces, put together to lines.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::tree::printable;
use crate::{engine::EventView, protocol::ModelDelta};

/// A line that nobody ends is ended at this many characters, at a space if there is one.
const WIDE: usize = 100;
/// Steps that are heard at a time; who begins to speak beyond them is not.
const VOICES: usize = 1_000;

/// What the models of a run are saying.
#[derive(Debug, Default)]
pub struct Said {
    voices: BTreeMap<u32, Voice>,
}

/// One model in the middle of its answer.
#[derive(Debug)]
struct Voice {
    attempt: u32,
    agent: String,
    manner: Manner,
    line: String,
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
    agent: String,
    delta: ModelDelta,
}

impl Said {
    /// Whether an event is a piece of an answer.
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
        let step = event.data.to_value()["step"].as_u64().filter(|_| ends);
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
        let Piece { step, attempt, agent, delta } = piece;
        if !self.voices.contains_key(&step) && self.voices.len() == VOICES {
            return Vec::new();
        }
        let fresh = || Voice { attempt, agent, manner: Manner::Says, line: String::new() };
        let voice = self.voices.entry(step).or_insert_with(fresh);
        let mut lines = Vec::new();
        if voice.attempt != attempt {
            lines.extend(voice.end());
            voice.attempt = attempt;
        }
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
        voice.line.push_str(&text);
        lines.extend(voice.whole());
        lines
    }
}

impl Voice {
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

    /// What is left of its line.
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
        let mut said = Said::default();
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
        let mut said = Said::default();
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
    fn a_line_without_an_end_is_ended_at_a_space() {
        let mut said = Said::default();
        let lines = said.hear(&text(1, &"word ".repeat(30)));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), "agent1: ".len() + 99);
        let lines = said.hear(&text(2, &"x".repeat(250)));
        assert_eq!(lines.len(), 2);
    }
}
