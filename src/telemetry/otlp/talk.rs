//! The conversation of a task with its model, as far as the journal has it: what its questions to the
//! model say.
//!
//! The prompts are rendered again, and the answers of the model and the results of its tools are
//! added as they end. Kept only where contents are exported, after redaction, and bounded.

use serde_json::{Value, json};

use super::contents;
use crate::{
    engine::VersionFacts,
    journal::Outcome,
    protocol::{Failure, Json, ModelReply},
};

/// The maximum number of messages.
const MESSAGES: usize = 32;
/// The maximum size of all messages, in bytes.
const SIZE: usize = 64 << 10;

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Talk {
    system: Option<String>,
    /// The question of the task, as JSON.
    question: String,
    /// The messages before and after it, the oldest first, as JSON.
    before: Vec<String>,
    after: Vec<String>,
}

impl Talk {
    /// Begins with the prompts of a task: the system prompt and the question.
    pub(super) fn new(system: Option<String>, question: &str) -> Self {
        let question = contents::spoken("user", &[contents::part(question)]);
        Self { system, question: question.to_string(), before: Vec::new(), after: Vec::new() }
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        let texts = self.before.iter().chain(&self.after).map(String::len).sum::<usize>();
        texts + self.question.len() + self.system.as_ref().map_or(0, String::len)
    }

    /// Returns the system instructions as the conventions have them.
    pub(super) fn system(&self) -> Option<String> {
        let system = self.system.as_deref()?;
        Some(json!([contents::part(system)]).to_string())
    }

    /// Returns the messages as the conventions have them.
    pub(super) fn messages(&self) -> String {
        let own = std::iter::once(&self.question);
        let all: Vec<&str> =
            self.before.iter().chain(own).chain(&self.after).map(String::as_str).collect();
        format!("[{}]", all.join(","))
    }

    /// Adds an answer of the model.
    pub(super) fn answered(&mut self, version: &VersionFacts, reply: &Json) {
        let Ok(reply) = reply.decode::<ModelReply>() else { return };
        let Some(parts) = contents::parts_of(version, &reply.items) else { return };
        self.add(&contents::spoken("assistant", &parts));
    }

    /// Adds the result of a tool.
    pub(super) fn called(&mut self, version: &VersionFacts, id: Option<&str>, result: &Outcome) {
        let result = match result {
            Outcome::Completed(output) => contents::text_of(version, "output", output),
            Outcome::Failed(Failure { kind, message, .. }) => {
                let message = Json::from(&Value::from(message.as_str()));
                contents::text_of(version, "message", &message)
                    .map(|said| format!("{kind}: {said}"))
            }
            Outcome::Canceled(_) => return,
        };
        let Some(result) = result else { return };
        let part = json!({ "type": "tool_call_response", "id": id, "response": result });
        self.add(&contents::spoken("tool", &[part]));
    }

    /// Adds the conversation of a session, which precedes the question.
    pub(super) fn recalled(&mut self, version: &VersionFacts, found: &Json) {
        let found = found.to_value();
        let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let late = items.len().saturating_sub(MESSAGES);
        for item in &items[late..] {
            let Some(parts) = contents::parts_of(version, std::slice::from_ref(item)) else {
                return;
            };
            let role = match item["type"].as_str() {
                Some("function_call") => "assistant",
                Some("function_call_output") => "tool",
                _ => item["role"].as_str().unwrap_or("user"),
            };
            if !parts.is_empty() {
                self.before.push(contents::spoken(role, &parts).to_string());
            }
        }
        self.make_room();
    }

    fn add(&mut self, message: &Value) {
        self.after.push(message.to_string());
        self.make_room();
    }

    /// Drops the oldest messages; the question and the last message stay.
    fn make_room(&mut self) {
        while self.before.len() + self.after.len() > MESSAGES || self.size() > SIZE {
            match (self.before.is_empty(), self.after.len()) {
                (false, _) => drop(self.before.remove(0)),
                (true, 2..) => drop(self.after.remove(0)),
                (true, _) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_messages_make_room_and_the_question_stays() {
        let mut talk = Talk::new(Some("Be brief.".to_owned()), "How far?");
        for turn in 0..MESSAGES + 8 {
            talk.add(&contents::spoken("assistant", &[contents::part(&format!("turn {turn}"))]));
        }
        let messages: Vec<Value> = serde_json::from_str(&talk.messages()).unwrap();
        assert_eq!(messages.len(), MESSAGES + 1);
        assert_eq!(messages[0]["parts"][0]["content"], "How far?");
        assert_eq!(messages[1]["parts"][0]["content"], "turn 8");
        talk.add(&contents::spoken("assistant", &[contents::part(&"x".repeat(SIZE))]));
        let messages: Vec<Value> = serde_json::from_str(&talk.messages()).unwrap();
        assert_eq!(messages.len(), 2, "the question and the last message");
        assert_eq!(talk.system().unwrap(), r#"[{"type":"text","content":"Be brief."}]"#);
    }
}
