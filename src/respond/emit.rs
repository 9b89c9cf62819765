//! The conversion of items to stream events.
//!
//! | an item | its events, between `output_item.added` and `output_item.done` |
//! |---|---|
//! | message | per part: `content_part.added`, deltas, annotations, `.done`, `content_part.done` |
//! | reasoning | per summary: `reasoning_summary_part.added` to `.done`; then its content parts |
//! | function_call | `function_call_arguments.delta`…, `.done` |
//! | anything else | none |
//!
//! The division into deltas depends only on the text, not on how it arrived: a client that reads
//! the same answer later receives the same events with the same numbers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The size range in bytes of a delta near the beginning of a text, where a delta is one word.
const NEAR: std::ops::Range<usize> = 0..48;
/// The size range in bytes of a delta after [`FAR_FROM`], so that a long text has few events.
const FAR: std::ops::Range<usize> = 512..1_024;
/// The offset in bytes after which deltas are long.
const FAR_FROM: usize = 16 * 1_024;

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The type: `response.output_text.delta`.
    pub kind: &'static str,
    /// The event, with `type` and `sequence_number`.
    pub data: Value,
}

impl Event {
    /// Returns true for the last event of a response.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, "response.completed" | "response.incomplete" | "response.failed")
    }
}

/// The pending events, numbered without gaps.
#[derive(Debug, Default)]
pub(super) struct Tape {
    next: u64,
    ready: Vec<Event>,
}

impl Tape {
    /// Appends an event.
    pub(super) fn push(&mut self, kind: &'static str, more: Value) {
        let mut data = json!({ "type": kind, "sequence_number": self.next });
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        self.next += 1;
        self.ready.push(Event { kind, data });
    }

    /// Returns the pending events and removes them.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ready)
    }
}

/// The position of a text in its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// A summary of a reasoning item.
    Summary(usize),
    /// A part of the content.
    Content(usize),
    /// The arguments of a call.
    Arguments,
}

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Text,
    Refusal,
    Reasoning,
    Summary,
    Arguments,
}

/// A text in progress.
#[derive(Debug, Default)]
struct OpenText {
    opened: bool,
    text: String,
    /// The offset of the next piece.
    cut: usize,
    /// The number of pieces of the current attempt.
    seen: usize,
    /// The number of pieces sent, including those of earlier attempts.
    sent: usize,
}

/// An item in progress.
#[derive(Debug)]
pub(super) struct Open {
    index: usize,
    id: String,
    parts: BTreeMap<Lane, OpenText>,
    /// True if every text is sent as one piece.
    pub(super) whole: bool,
}

impl Open {
    /// Starts an item with what is known of it.
    pub(super) fn begin(tape: &mut Tape, index: usize, begins: &Value) -> Self {
        let item = begun(begins);
        tape.push("response.output_item.added", json!({ "output_index": index, "item": item }));
        let id = begins["id"].as_str().unwrap_or_default().to_owned();
        Self { index, id, parts: BTreeMap::new(), whole: false }
    }

    /// Resets the texts, because the call is retried.
    pub(super) fn again(&mut self) {
        for part in self.parts.values_mut() {
            part.text.clear();
            (part.cut, part.seen) = (0, 0);
        }
    }

    /// Appends a piece to a text.
    pub(super) fn hear(&mut self, tape: &mut Tape, lane: Lane, sort: Sort, text: &str) {
        self.open_part(tape, lane, sort);
        let part = self.parts.entry(lane).or_default();
        part.text.push_str(text);
        self.cut(tape, lane, sort, false);
    }

    fn open_part(&mut self, tape: &mut Tape, lane: Lane, sort: Sort) {
        let part = self.parts.entry(lane).or_default();
        if std::mem::replace(&mut part.opened, true) {
            return;
        }
        match lane {
            Lane::Summary(_) => {
                let event = self.at(lane, json!({ "part": shown(sort, "") }));
                tape.push("response.reasoning_summary_part.added", event);
            }
            Lane::Content(_) => {
                let event = self.at(lane, json!({ "part": shown(sort, "") }));
                tape.push("response.content_part.added", event);
            }
            Lane::Arguments => {}
        }
    }

    /// Returns the fields that identify a position, together with `more`.
    fn at(&self, lane: Lane, more: Value) -> Value {
        let mut event = json!({ "item_id": self.id, "output_index": self.index });
        match lane {
            Lane::Summary(place) => event["summary_index"] = place.into(),
            Lane::Content(place) => event["content_index"] = place.into(),
            Lane::Arguments => {}
        }
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        event
    }

    /// Sends the complete pieces of a text. If `over`, also sends the rest.
    fn cut(&mut self, tape: &mut Tape, lane: Lane, sort: Sort, over: bool) {
        let Some(mut part) = self.parts.remove(&lane) else { return };
        loop {
            let rest = &part.text[part.cut..];
            let length = match self.whole {
                true if over && !rest.is_empty() => Some(rest.len()),
                true => None,
                false if part.cut < FAR_FROM => piece(rest, &NEAR, over),
                false => piece(rest, &FAR, over),
            };
            let Some(length) = length else { break };
            if part.seen >= part.sent {
                let mut event = self.at(lane, json!({ "delta": &rest[..length] }));
                if sort == Sort::Text {
                    event["logprobs"] = json!([]);
                }
                tape.push(sort.delta(), event);
                part.sent += 1;
            }
            part.seen += 1;
            part.cut += length;
        }
        self.parts.insert(lane, part);
    }

    /// Ends a text with its final content.
    fn end_part(&mut self, tape: &mut Tape, lane: Lane, sort: Sort, text: &str, part: &Value) {
        self.open_part(tape, lane, sort);
        let known = self.parts.entry(lane).or_default();
        text.clone_into(&mut known.text);
        (known.cut, known.seen) = (0, 0);
        self.cut(tape, lane, sort, true);
        if sort == Sort::Text {
            for (place, annotation) in
                part["annotations"].as_array().into_iter().flatten().enumerate()
            {
                let more = json!({ "annotation_index": place, "annotation": annotation });
                tape.push("response.output_text.annotation.added", self.at(lane, more));
            }
        }
        let mut event = self.at(lane, json!({ sort.word(): text }));
        if sort == Sort::Text {
            event["logprobs"] = part["logprobs"].as_array().cloned().unwrap_or_default().into();
        }
        tape.push(sort.done(), event);
        let ended = json!({ "part": part });
        match lane {
            Lane::Summary(_) => {
                tape.push("response.reasoning_summary_part.done", self.at(lane, ended));
            }
            Lane::Content(_) => tape.push("response.content_part.done", self.at(lane, ended)),
            Lane::Arguments => {}
        }
    }

    /// Ends the item with its final content.
    pub(super) fn end(mut self, tape: &mut Tape, item: &Value) {
        if let Some(id) = item["id"].as_str() {
            id.clone_into(&mut self.id);
        }
        match item["type"].as_str() {
            Some("message") => {
                for (place, part) in item["content"].as_array().into_iter().flatten().enumerate() {
                    let lane = Lane::Content(place);
                    match part["type"].as_str() {
                        Some("output_text") => {
                            let text = part["text"].as_str().unwrap_or_default();
                            self.end_part(tape, lane, Sort::Text, text, part);
                        }
                        Some("refusal") => {
                            let text = part["refusal"].as_str().unwrap_or_default();
                            self.end_part(tape, lane, Sort::Refusal, text, part);
                        }
                        _ => {}
                    }
                }
            }
            Some("reasoning") => {
                for (place, part) in item["summary"].as_array().into_iter().flatten().enumerate() {
                    let text = part["text"].as_str().unwrap_or_default();
                    self.end_part(tape, Lane::Summary(place), Sort::Summary, text, part);
                }
                for (place, part) in item["content"].as_array().into_iter().flatten().enumerate() {
                    let text = part["text"].as_str().unwrap_or_default();
                    self.end_part(tape, Lane::Content(place), Sort::Reasoning, text, part);
                }
            }
            Some("function_call") => {
                let arguments = item["arguments"].as_str().unwrap_or_default();
                self.end_part(tape, Lane::Arguments, Sort::Arguments, arguments, &Value::Null);
            }
            _ => {}
        }
        let event = json!({ "output_index": self.index, "item": item });
        tape.push("response.output_item.done", event);
    }
}

impl Sort {
    fn delta(self) -> &'static str {
        match self {
            Self::Text => "response.output_text.delta",
            Self::Refusal => "response.refusal.delta",
            Self::Reasoning => "response.reasoning.delta",
            Self::Summary => "response.reasoning_summary_text.delta",
            Self::Arguments => "response.function_call_arguments.delta",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Text => "response.output_text.done",
            Self::Refusal => "response.refusal.done",
            Self::Reasoning => "response.reasoning.done",
            Self::Summary => "response.reasoning_summary_text.done",
            Self::Arguments => "response.function_call_arguments.done",
        }
    }

    /// Returns the name of the field that has the whole text in the final event.
    fn word(self) -> &'static str {
        match self {
            Self::Text | Self::Reasoning | Self::Summary => "text",
            Self::Refusal => "refusal",
            Self::Arguments => "arguments",
        }
    }
}

/// Returns a part with this text.
fn shown(sort: Sort, text: &str) -> Value {
    match sort {
        Sort::Text => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
        Sort::Refusal => json!({ "type": "refusal", "refusal": text }),
        Sort::Reasoning => json!({ "type": "reasoning_text", "text": text }),
        Sort::Summary => json!({ "type": "summary_text", "text": text }),
        Sort::Arguments => Value::Null,
    }
}

/// Returns an item without its texts.
fn begun(item: &Value) -> Value {
    let mut begun = item.clone();
    match item["type"].as_str() {
        Some("message") => {
            begun["content"] = json!([]);
            begun["status"] = "in_progress".into();
            if !begun["role"].is_string() {
                begun["role"] = "assistant".into();
            }
        }
        Some("reasoning") => {
            begun["summary"] = json!([]);
            if let Some(map) = begun.as_object_mut() {
                map.retain(|name, _| name != "content" && name != "encrypted_content");
            }
        }
        Some("function_call") => {
            begun["arguments"] = "".into();
            begun["status"] = "in_progress".into();
        }
        Some("function_call_output") => {
            begun["output"] = "".into();
            begun["status"] = "in_progress".into();
        }
        _ => {}
    }
    begun
}

/// Returns the length in bytes of the next piece of a text: words with the spaces before them.
/// Returns `None` if the end of the last word is not known yet.
fn piece(rest: &str, bytes: &std::ops::Range<usize>, over: bool) -> Option<usize> {
    let mut in_word = false;
    for (at, c) in rest.char_indices() {
        if c.is_whitespace() && in_word && at >= bytes.start {
            return Some(at);
        }
        in_word |= !c.is_whitespace();
        if at + c.len_utf8() > bytes.end {
            return Some(at.max(c.len_utf8()));
        }
    }
    (over && !rest.is_empty()).then_some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        let (mut rest, mut all) = (text, Vec::new());
        while let Some(length) = piece(rest, &NEAR, true) {
            all.push(&rest[..length]);
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
        all
    }

    #[test]
    fn a_piece_is_a_word_and_a_long_one_is_cut_between_characters() {
        assert_eq!(pieces("ab  cd\n e"), ["ab", "  cd", "\n e"]);
        assert_eq!(pieces(""), [""; 0]);
        let long = "é".repeat(30);
        assert_eq!(pieces(&long), ["é".repeat(24), "é".repeat(6)]);
        assert_eq!(pieces(&" ".repeat(50)).concat(), " ".repeat(50));
        assert_eq!(piece("ab", &NEAR, false), None);
        assert_eq!(piece("ab ", &NEAR, false), Some(2));
    }

    #[test]
    fn a_long_text_is_few_events() {
        let text = "word ".repeat(200_000);
        let item = json!({ "type": "message", "id": "msg_1", "status": "completed",
            "role": "assistant",
            "content": [{ "type": "output_text", "text": text, "annotations": [] }] });
        let mut tape = Tape::default();
        Open::begin(&mut tape, 0, &item).end(&mut tape, &item);
        let events = tape.take();
        assert!(events.len() < 6_000, "{}", events.len());
        let said: String = events.iter().filter_map(|event| event.data["delta"].as_str()).collect();
        assert_eq!(said, text);
    }

    #[test]
    fn the_same_text_has_the_same_events_however_it_came() {
        let item = json!({ "type": "message", "id": "msg_1", "status": "completed",
            "role": "assistant",
            "content": [{ "type": "output_text", "text": "one two  three", "annotations": [] }] });
        let mut tape = Tape::default();
        Open::begin(&mut tape, 0, &item).end(&mut tape, &item);
        let whole = tape.take();
        for cuts in [1, 2, 3, 5, 20] {
            let mut tape = Tape::default();
            let mut open = Open::begin(&mut tape, 0, &item);
            for chunk in "one two  three".as_bytes().chunks(cuts) {
                let text = std::str::from_utf8(chunk).unwrap();
                open.hear(&mut tape, Lane::Content(0), Sort::Text, text);
            }
            open.end(&mut tape, &item);
            assert_eq!(tape.take(), whole, "in pieces of {cuts}");
        }
        let kinds: Vec<_> = whole.iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            [
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done"
            ]
        );
    }

    #[test]
    fn a_text_that_is_begun_anew_goes_on_under_the_numbers_it_had() {
        let item = json!({ "type": "message", "id": "msg_1", "status": "completed",
            "role": "assistant",
            "content": [{ "type": "output_text", "text": "one two three", "annotations": [] }] });
        let mut tape = Tape::default();
        let mut open = Open::begin(&mut tape, 0, &item);
        open.hear(&mut tape, Lane::Content(0), Sort::Text, "uno due ");
        open.again();
        open.hear(&mut tape, Lane::Content(0), Sort::Text, "one two thr");
        open.end(&mut tape, &item);
        let events = tape.take();
        let deltas: Vec<_> =
            events.iter().filter_map(|event| event.data["delta"].as_str()).collect();
        assert_eq!(deltas, ["uno", " due", " three"]);
        let numbers: Vec<_> =
            events.iter().map(|event| event.data["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
        let done = events.iter().find(|it| it.kind == "response.output_text.done").unwrap();
        assert_eq!(done.data["text"], "one two three");
    }
}
