//! What an open attempt asks of a senior, or a task of people.

use serde::{Deserialize, Serialize};

use crate::{
    engine::rfc3339,
    flow::Asking,
    operator::{HUMAN, Inquiry, Prompt},
    protocol::Json,
    store::TaskRow,
};

/// The most of a question that a list shows, in characters.
pub(crate) const SHOWN: usize = 120;

/// What an attempt asked, and what it was told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// `{question, data}`.
    pub(crate) asked: Json,
    pub(crate) asked_ms: u64,
    /// What was left of the attempt's time.
    pub(crate) left_ms: Option<u64>,
    pub(crate) answer: Option<Json>,
    pub(crate) by: Option<String>,
}

impl Question {
    /// A stored question that was not answered yet.
    pub(crate) fn open(text: &str) -> Option<Self> {
        serde_json::from_str::<Self>(text).ok().filter(|question| question.answer.is_none())
    }

    /// The question in a line.
    pub(crate) fn text(&self) -> String {
        let asked = self.asked.to_value();
        let text = asked.get("question").and_then(|text| text.as_str()).unwrap_or_default();
        text.chars().take(SHOWN).collect()
    }
}

/// A stored question as its worker sees it.
pub(crate) fn advice(text: &str) -> Option<Json> {
    let question: Question = serde_json::from_str(text).ok()?;
    let Question { asked, asked_ms, answer, by, .. } = question;
    let mut view = asked.to_value();
    view["asked_at"] = rfc3339(asked_ms).into();
    view["answer"] = answer.map_or(serde_json::Value::Null, |answer| answer.to_value());
    view["by"] = by.into();
    Some(view.into())
}

/// What an open task's row asks of people, if it is one for them.
pub(crate) fn inquiry(row: &TaskRow) -> Option<Inquiry> {
    if row.kind != HUMAN {
        return None;
    }
    let prompt: Prompt = serde_json::from_str(&row.prompt).ok()?;
    let asked = prompt.inquiry.clone();
    // A row that an older release wrote asks anybody, once.
    Some(asked.unwrap_or_else(|| Inquiry::new(&prompt, &Asking::default(), row.opened_ms)))
}
