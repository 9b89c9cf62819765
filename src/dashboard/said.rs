//! The words of models as they come, gathered from lossy deltas for a page that watches.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::engine::EventView;

/// The longest text of a step that is kept, in bytes.
const LONGEST: usize = 64 << 10;
/// The maximum number of texts of a step.
const TEXTS: usize = 64;
/// The maximum number of steps whose texts are kept.
const STEPS: usize = 32;

/// The texts in progress of a step and of its parts.
#[derive(Debug)]
pub(super) struct Said {
    /// The step of the page.
    of: u32,
    /// Its parts, as far as they are known.
    parts: BTreeSet<u32>,
    /// True if something durable happened to the step since the last look.
    pub moved: bool,
    steps: BTreeMap<u32, Saying>,
}

/// The texts of an attempt of one step.
#[derive(Debug, Default)]
struct Saying {
    attempt: u64,
    size: usize,
    /// By the place of the item and of the part in it.
    texts: BTreeMap<(u64, u64), (Kind, String)>,
}

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The answer, or a refusal.
    Answer,
    /// Reasoning, or a summary of it.
    Reasoning,
    /// The arguments of a call.
    Arguments,
}

impl Said {
    /// Creates the texts of a step's page.
    pub(super) fn new(of: u32) -> Self {
        Self { of, parts: BTreeSet::new(), moved: true, steps: BTreeMap::new() }
    }

    /// Takes an event of the run.
    pub(super) fn take(&mut self, event: &EventView) {
        let data = event.data.to_value();
        let number = |key: &str| data[key].as_u64().and_then(|it| u32::try_from(it).ok());
        let Some(step) = number("step") else {
            self.moved |= event.seq.is_some() && event.kind.starts_with("run.");
            return;
        };
        if event.kind == "model.delta" {
            let known = step == self.of || self.parts.contains(&step);
            if known && (self.steps.len() < STEPS || self.steps.contains_key(&step)) {
                self.steps.entry(step).or_default().take(&data);
            }
            return;
        }
        if [number("parent"), number("composite")].contains(&Some(self.of)) {
            self.parts.insert(step);
        }
        self.moved |= step == self.of || self.parts.contains(&step);
    }

    /// Sets the parts that are known; what ended is forgotten.
    pub(super) fn know(&mut self, parts: impl IntoIterator<Item = (u32, bool)>) {
        for (part, open) in parts {
            self.parts.insert(part);
            if !open {
                self.steps.remove(&part);
            }
        }
    }

    /// Returns the texts, those of each step in their order.
    pub(super) fn texts(&self) -> impl Iterator<Item = (u32, Kind, &str)> {
        self.steps.iter().flat_map(|(step, saying)| {
            saying.texts.values().map(|(kind, text)| (*step, *kind, text.as_str()))
        })
    }
}

impl Saying {
    fn take(&mut self, data: &Value) {
        let attempt = data["attempt"].as_u64().unwrap_or(0);
        if attempt != self.attempt {
            *self = Self { attempt, ..Self::default() };
        }
        let delta = &data["delta"];
        let kind = match delta["type"].as_str() {
            Some("text" | "refusal") => Kind::Answer,
            Some("reasoning" | "reasoning_summary") => Kind::Reasoning,
            Some("arguments") => Kind::Arguments,
            _ => return,
        };
        let place = |key: &str| delta[key].as_u64().unwrap_or(0);
        let (Some(more), at) = (delta["delta"].as_str(), (place("item"), place("part"))) else {
            return;
        };
        if self.size >= LONGEST || (self.texts.len() >= TEXTS && !self.texts.contains_key(&at)) {
            return;
        }
        let (_, text) = self.texts.entry(at).or_insert_with(|| (kind, String::new()));
        // A merged piece repeats nothing: it says how much of its text is before it.
        let before = data["at"].as_u64().and_then(|at| usize::try_from(at).ok());
        match before {
            Some(before) if before < text.len() && text.is_char_boundary(before) => {
                text.truncate(before);
            }
            Some(before) if before > text.len() => text.push('…'),
            _ => {}
        }
        text.push_str(more);
        self.size = self.texts.values().map(|(_, text)| text.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::Json;

    fn event(kind: &str, data: Value) -> EventView {
        let seq = (kind != "model.delta").then_some(1);
        EventView { seq, kind: kind.into(), at: String::new(), data: Json::from(data) }
    }

    fn delta(step: u32, attempt: u32, text: &str) -> EventView {
        let delta = json!({ "type": "text", "item": 0, "part": 0, "delta": text });
        event("model.delta", json!({ "step": step, "attempt": attempt, "n": 0, "delta": delta }))
    }

    fn shown(said: &Said) -> Vec<(u32, String)> {
        said.texts().map(|(step, _, text)| (step, text.to_owned())).collect()
    }

    #[test]
    fn texts_of_parts_are_gathered_and_a_new_attempt_begins_anew() {
        let mut said = Said::new(1);
        said.take(&event("step.scheduled", json!({ "step": 2, "parent": 1 })));
        assert!(std::mem::take(&mut said.moved));
        for it in [delta(2, 1, "a"), delta(2, 1, "b"), delta(9, 1, "of another step")] {
            said.take(&it);
        }
        assert!(!said.moved, "a delta alone changes nothing durable");
        assert_eq!(shown(&said), [(2, "ab".to_owned())]);
        said.take(&delta(2, 2, "again"));
        assert_eq!(shown(&said), [(2, "again".to_owned())]);
        said.know([(2, false)]);
        assert!(shown(&said).is_empty());
    }

    #[test]
    fn a_merged_piece_continues_at_its_place_and_a_gap_is_seen() {
        let mut said = Said::new(1);
        said.take(&delta(1, 1, "abc"));
        let joined = |at: usize, text: &str| {
            let delta = json!({ "type": "text", "item": 0, "part": 0, "delta": text });
            event("model.delta", json!({ "step": 1, "attempt": 1, "at": at, "delta": delta }))
        };
        said.take(&joined(2, "cd"));
        assert_eq!(shown(&said), [(1, "abcd".to_owned())]);
        said.take(&joined(9, "z"));
        assert_eq!(shown(&said), [(1, "abcd…z".to_owned())]);
        said.take(&delta(1, 1, &"x".repeat(LONGEST)));
        said.take(&delta(1, 1, "no more"));
        assert!(!shown(&said)[0].1.contains("no more"));
    }
}
