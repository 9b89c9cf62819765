//! The answer in progress: its items, and the deltas that were not emitted yet.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{price::Tokens, wrong::Wrong};
use crate::protocol::{ModelDelta, ModelReply, ModelStop};

/// The maximum number of items of an answer.
const ITEMS: usize = 1_000;
/// The maximum number of parts of an item.
const PARTS: usize = 1_000;
/// The maximum number of parts that the deltas of an answer begin, in all its items.
const ALL_PARTS: usize = 4_000;

/// An answer in progress.
///
/// Ids that the provider does not supply are derived from the attempt and the index of the item, so
/// that the same answer always has the same ids: `msg_…`, `rs_…`, `fc_…`, `call_…`.
#[derive(Debug)]
pub(super) struct Draft {
    seed: String,
    items: Vec<Value>,
    pieces: Vec<ModelDelta>,
    /// The number of parts that deltas began: a short delta may name a late part.
    parts: usize,
    /// The number of items that were reported as done.
    over: usize,
    /// The model, as the provider names it.
    pub(super) model: Option<String>,
    /// The usage.
    pub(super) tokens: Tokens,
    /// The reason why it ended, once it has.
    pub(super) stop: Option<ModelStop>,
}

/// The kind of a text that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grows {
    /// Text for the reader.
    Text,
    /// A refusal.
    Refusal,
    /// Reasoning.
    Reasoning,
    /// A summary of reasoning.
    Summary,
}

impl Grows {
    /// Returns the key of the list in an item, the type of its parts, and the key of the text.
    fn at(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Text => ("content", "output_text", "text"),
            Self::Refusal => ("content", "refusal", "refusal"),
            Self::Reasoning => ("content", "reasoning_text", "text"),
            Self::Summary => ("summary", "summary_text", "text"),
        }
    }

    fn part(self) -> Value {
        let (_, kind, text) = self.at();
        let mut part = json!({ "type": kind, text: "" });
        if self == Self::Text {
            part["annotations"] = json!([]);
            part["logprobs"] = json!([]);
        }
        part
    }

    fn piece(self, item: usize, part: usize, delta: String) -> ModelDelta {
        match self {
            Self::Text => ModelDelta::Text { item, part, delta },
            Self::Refusal => ModelDelta::Refusal { item, part, delta },
            Self::Reasoning => ModelDelta::Reasoning { item, part, delta },
            Self::Summary => ModelDelta::ReasoningSummary { item, part, delta },
        }
    }
}

impl Draft {
    /// Creates an empty answer. `seed` distinguishes its ids from those of other answers.
    pub(super) fn new(seed: impl Into<String>) -> Self {
        Self {
            seed: seed.into(),
            items: Vec::new(),
            pieces: Vec::new(),
            parts: 0,
            over: 0,
            model: None,
            tokens: Tokens::default(),
            stop: None,
        }
    }

    /// Begins an item and returns its index.
    pub(super) fn begin(&mut self, mut item: Value) -> Result<usize, Wrong> {
        let place = self.items.len();
        if place == ITEMS {
            return Err(Wrong::malformed(format!("it has more than {ITEMS} items"), b""));
        }
        check(&item)?;
        self.name(&mut item, place);
        let mut begins = Map::new();
        for key in ["type", "id", "role", "name", "call_id"] {
            if let Some(value) = item.get(key) {
                begins.insert(key.to_owned(), value.clone());
            }
        }
        self.pieces.push(ModelDelta::Item { item: place, begins: begins.into() });
        self.items.push(item);
        Ok(place)
    }

    /// Begins a message.
    pub(super) fn message(&mut self) -> Result<usize, Wrong> {
        self.begin(json!({
            "type": "message", "status": "completed", "role": "assistant", "content": [],
        }))
    }

    /// Begins a reasoning item.
    pub(super) fn reasoning(&mut self) -> Result<usize, Wrong> {
        self.begin(json!({ "type": "reasoning", "summary": [] }))
    }

    /// Begins a call; generates an id if it is absent.
    pub(super) fn call(&mut self, id: Option<&str>, name: &str) -> Result<usize, Wrong> {
        let mut item = json!({ "type": "function_call", "status": "completed" });
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            item["call_id"] = id.into();
        }
        item["name"] = name.into();
        item["arguments"] = "".into();
        self.begin(item)
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the items so far.
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    /// Returns an item for changes.
    pub(super) fn item(&mut self, place: usize) -> Option<&mut Value> {
        self.items.get_mut(place)
    }

    /// Replaces an item with its final form, or adds it if it is the next.
    pub(super) fn put(&mut self, place: usize, mut item: Value) -> Result<(), Wrong> {
        if place >= self.items.len() {
            return self.begin(item).map(drop);
        }
        check(&item)?;
        // An id that was generated and emitted earlier is kept.
        for key in ["id", "call_id"] {
            let known = self.items[place].get(key).filter(|it| it.is_string()).cloned();
            if !item.get(key).is_some_and(is_named)
                && let Some(known) = known
            {
                item[key] = known;
            }
        }
        self.name(&mut item, place);
        self.items[place] = item;
        Ok(())
    }

    /// Replaces the items, for a provider that ends with the whole response.
    pub(super) fn replace(&mut self, items: Vec<Value>) -> Result<(), Wrong> {
        self.items.truncate(items.len());
        for (place, item) in items.into_iter().enumerate() {
            self.put(place, item)?;
        }
        Ok(())
    }

    /// Appends to a text.
    pub(super) fn grow(
        &mut self,
        grows: Grows,
        item: usize,
        part: usize,
        delta: &str,
    ) -> Result<(), Wrong> {
        if delta.is_empty() {
            return Ok(());
        }
        let (list, _, text) = grows.at();
        let lost = || Wrong::malformed("a piece belongs to no item", delta.as_bytes());
        let into = self.items.get_mut(item).and_then(Value::as_object_mut).ok_or_else(lost)?;
        let parts = into.entry(list).or_insert_with(|| json!([]));
        let parts = parts.as_array_mut().ok_or_else(lost)?;
        if part >= PARTS {
            return Err(Wrong::malformed(format!("it has more than {PARTS} parts"), b""));
        }
        self.parts += (part + 1).saturating_sub(parts.len());
        if self.parts > ALL_PARTS {
            return Err(Wrong::malformed(format!("it has more than {ALL_PARTS} parts"), b""));
        }
        while parts.len() <= part {
            parts.push(grows.part());
        }
        let into = parts[part].as_object_mut().ok_or_else(lost)?;
        match into.get_mut(text) {
            Some(Value::String(text)) => text.push_str(delta),
            _ => drop(into.insert(text.to_owned(), delta.into())),
        }
        self.say(grows.piece(item, part, delta.to_owned()));
        Ok(())
    }

    /// Appends to the arguments of a call.
    pub(super) fn argue(&mut self, item: usize, delta: &str) -> Result<(), Wrong> {
        match self.items.get_mut(item).and_then(|item| item.get_mut("arguments")) {
            Some(Value::String(text)) => text.push_str(delta),
            _ => {
                return Err(Wrong::malformed("arguments belong to no call", delta.as_bytes()));
            }
        }
        if !delta.is_empty() {
            self.say(ModelDelta::Arguments { item, delta: delta.to_owned() });
        }
        Ok(())
    }

    /// Takes the deltas that were not emitted yet.
    pub(super) fn take_pieces(&mut self) -> Vec<ModelDelta> {
        std::mem::take(&mut self.pieces)
    }

    /// Returns the number of items that were reported as done.
    pub(super) fn told(&self) -> usize {
        self.over
    }

    /// Reports the items before an index as done: nothing is added to them any more.
    pub(super) fn over(&mut self, before: usize) {
        while let Some(whole) = self.items.get(self.over).filter(|_| self.over < before) {
            let whole = whole.clone();
            self.pieces.push(ModelDelta::Done { item: self.over, whole });
            self.over += 1;
        }
    }

    /// Returns the complete reply, once it has ended; reports every item as done.
    pub(super) fn reply(&mut self, asked: &str) -> Result<ModelReply, Wrong> {
        let Some(stop) = self.stop else { return Err(Wrong::Cut) };
        let mut ids = HashSet::new();
        let calls = self.items.iter().filter(|item| item["type"] == "function_call");
        for call in calls {
            let id = call["call_id"].as_str().unwrap_or_default();
            if call["name"].as_str().is_none_or(str::is_empty) {
                return Err(Wrong::malformed("a call has no name", call.to_string().as_bytes()));
            }
            if !ids.insert(id) {
                let why = format!("two calls have the id {id:?}");
                return Err(Wrong::malformed(why, call.to_string().as_bytes()));
            }
        }
        let calls = !ids.is_empty();
        let refuses = self.items.iter().any(|item| {
            item["content"].as_array().into_iter().flatten().any(|part| part["type"] == "refusal")
        });
        let stop = match stop {
            ModelStop::End | ModelStop::ToolCalls if calls => ModelStop::ToolCalls,
            ModelStop::End | ModelStop::ToolCalls if refuses => ModelStop::Refusal,
            // The stop reason announces calls, but there are none.
            ModelStop::ToolCalls => ModelStop::End,
            other => other,
        };
        if matches!(stop, ModelStop::Length | ModelStop::ContentFilter)
            && let Some(last) = self.items.last_mut()
            && last.get("status").is_some()
        {
            last["status"] = "incomplete".into();
        }
        self.over(self.items.len());
        let model = self.model.take().unwrap_or_else(|| asked.to_owned());
        Ok(ModelReply { model, items: std::mem::take(&mut self.items), stop })
    }

    /// Adds a delta; merges it with the previous one if it continues that.
    fn say(&mut self, piece: ModelDelta) {
        use ModelDelta::{Arguments, Reasoning, ReasoningSummary, Refusal, Text};
        match (self.pieces.last_mut(), &piece) {
            (
                Some(Text { item, part, delta }),
                Text { item: next, part: next_part, delta: more },
            )
            | (
                Some(Refusal { item, part, delta }),
                Refusal { item: next, part: next_part, delta: more },
            )
            | (
                Some(Reasoning { item, part, delta }),
                Reasoning { item: next, part: next_part, delta: more },
            )
            | (
                Some(ReasoningSummary { item, part, delta }),
                ReasoningSummary { item: next, part: next_part, delta: more },
            ) if (*item, *part) == (*next, *next_part) => delta.push_str(more),
            (Some(Arguments { item, delta }), Arguments { item: next, delta: more })
                if item == next =>
            {
                delta.push_str(more);
            }
            _ => self.pieces.push(piece),
        }
    }

    /// Generates the missing ids of an item.
    fn name(&self, item: &mut Value, place: usize) {
        let prefix = match item["type"].as_str() {
            Some("message") => "msg",
            Some("reasoning") => "rs",
            Some("function_call") => "fc",
            _ => "item",
        };
        let is_call = prefix == "fc";
        let Some(item) = item.as_object_mut() else { return };
        let mut own = |key: &str, prefix: &str| {
            if !item.get(key).is_some_and(is_named) {
                let hash = blake3::hash(format!("{}.{place}.{prefix}", self.seed).as_bytes());
                let id = format!("{prefix}_{}", &hash.to_hex()[..32]);
                item.insert(key.to_owned(), id.into());
            }
        };
        own("id", prefix);
        if is_call {
            own("call_id", "call");
        }
    }
}

/// Refuses an item that is no object, which nothing that reads a reply expects.
fn check(item: &Value) -> Result<(), Wrong> {
    match item.is_object() {
        true => Ok(()),
        false => Err(Wrong::malformed("an item is no object", item.to_string().as_bytes())),
    }
}

fn is_named(id: &Value) -> bool {
    id.as_str().is_some_and(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_missing_are_made_and_are_the_same_each_time() {
        let made = |seed: &str| {
            let mut draft = Draft::new(seed);
            draft.message().unwrap();
            draft.call(None, "ls").unwrap();
            draft.call(Some("given"), "ls").unwrap();
            draft.stop = Some(ModelStop::End);
            draft.reply("m").unwrap()
        };
        let reply = made("task_1.1");
        assert_eq!(reply, made("task_1.1"));
        assert_ne!(reply, made("task_1.2"));
        assert!(reply.items[0]["id"].as_str().unwrap().starts_with("msg_"));
        assert!(reply.items[1]["call_id"].as_str().unwrap().starts_with("call_"));
        assert_eq!(reply.items[2]["call_id"], "given");
        assert_eq!(reply.stop, ModelStop::ToolCalls);
    }

    #[test]
    fn pieces_that_continue_each_other_are_one() {
        let mut draft = Draft::new("t");
        let message = draft.message().unwrap();
        for piece in ["a", "", "b"] {
            draft.grow(Grows::Text, message, 0, piece).unwrap();
        }
        draft.grow(Grows::Text, message, 1, "c").unwrap();
        let pieces = draft.take_pieces();
        let text = |part, delta: &str| ModelDelta::Text { item: 0, part, delta: delta.to_owned() };
        assert_eq!(pieces[1..], [text(0, "ab"), text(1, "c")]);
        assert!(draft.take_pieces().is_empty());
        draft.stop = Some(ModelStop::End);
        assert_eq!(draft.reply("m").unwrap().text(), "abc");
    }

    #[test]
    fn an_answer_is_whole_only_with_its_end() {
        assert!(matches!(Draft::new("t").reply("m"), Err(Wrong::Cut)));
        let mut twice = Draft::new("t");
        twice.call(Some("same"), "a").unwrap();
        twice.call(Some("same"), "b").unwrap();
        twice.stop = Some(ModelStop::ToolCalls);
        let error = twice.reply("m").unwrap_err().to_string();
        assert!(error.contains("two calls have the id \"same\""), "{error}");
    }

    #[test]
    fn what_ends_at_a_limit_is_incomplete_and_a_refusal_is_a_stop() {
        let mut draft = Draft::new("t");
        let call = draft.call(Some("c"), "ls").unwrap();
        draft.argue(call, "{\"path\":").unwrap();
        draft.stop = Some(ModelStop::Length);
        let reply = draft.reply("m").unwrap();
        assert_eq!(
            (reply.stop, &reply.items[0]["status"]),
            (ModelStop::Length, &json!("incomplete"))
        );
        assert_eq!(reply.items[0]["arguments"], "{\"path\":");
        let mut draft = Draft::new("t");
        let message = draft.message().unwrap();
        draft.grow(Grows::Refusal, message, 0, "no").unwrap();
        draft.stop = Some(ModelStop::End);
        assert_eq!(draft.reply("m").unwrap().stop, ModelStop::Refusal);
    }
}
