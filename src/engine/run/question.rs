//! The questions of open attempts to a senior, and of tasks to people.

use serde::{Deserialize, Serialize};

use crate::{engine::rfc3339, protocol::Json};

/// The number of characters of a question that a list shows.
pub(crate) const SHOWN: usize = 120;

/// The question of an attempt, and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// `{question, data}`.
    pub(crate) asked: Json,
    pub(crate) asked_ms: u64,
    /// The remaining time of the attempt.
    pub(crate) left_ms: Option<u64>,
    pub(crate) answer: Option<Json>,
    pub(crate) by: Option<String>,
}

impl Question {
    /// Returns a stored question that has no answer yet.
    pub(crate) fn open(text: &str) -> Option<Self> {
        serde_json::from_str::<Self>(text).ok().filter(|question| question.answer.is_none())
    }

    /// Returns a hash of the question and the attempt that asks it.
    pub(crate) fn revision(&self, attempt: u32) -> String {
        let asked = self.asked.to_value();
        let seen = serde_json::json!([attempt, self.asked_ms, asked]).to_string();
        blake3::hash(seen.as_bytes()).to_hex()[..16].to_owned()
    }

    /// Returns the question as one line, as lists show it.
    pub(crate) fn text(&self) -> String {
        self.whole().0.chars().take(SHOWN).collect()
    }

    /// Returns the question, and its data if there are any.
    pub(crate) fn whole(&self) -> (String, Option<Json>) {
        let mut asked = self.asked.to_value();
        let text = asked["question"].as_str().unwrap_or_default().to_owned();
        let data = asked.get_mut("data").map(serde_json::Value::take);
        (text, data.filter(|data| !data.is_null()).map(Json::from))
    }
}

/// Returns a stored question for its worker.
pub(crate) fn advice(text: &str) -> Option<Json> {
    let question: Question = serde_json::from_str(text).ok()?;
    let Question { asked, asked_ms, answer, by, .. } = question;
    let mut view = asked.to_value();
    view["asked_at"] = rfc3339(asked_ms).into();
    view["answer"] = answer.map_or(serde_json::Value::Null, |answer| answer.to_value());
    view["by"] = by.into();
    Some(view.into())
}
