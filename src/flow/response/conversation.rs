//! A conversation that outlives its loop: read before the model is asked for the first time, and
//! written before the loop is done.
//!
//! The write has the revision that was read as its condition. Where another loop was faster, the
//! conversation is read again and the model is asked again: each answer follows from all before it.

use serde_json::Value;

use super::{Begin, ConversationItem, LoopAction, LoopStop, Remembered, ResponseFlow, Stage, Step};
use crate::{
    journal::Outcome,
    protocol::{Failure, Json, ModelEnd, failure::kind},
};

/// The maximum number of times that a loop starts over because another was faster.
const TRIES: u32 = 8;

impl ResponseFlow {
    /// Reads the conversation, if there is one that was not read.
    pub(super) fn recall(&mut self) -> Option<LoopAction> {
        if self.settings.conversation.is_none() || self.recalled.done {
            return None;
        }
        self.stage = Stage::Recalling { place: self.places.len() };
        Some(LoopAction::Begin(vec![Begin::Recall]))
    }

    /// Does without the conversation.
    pub fn forget_conversation(&mut self) {
        self.settings.conversation = None;
    }

    /// Handles the conversation as it was read.
    pub(super) fn recollected(&mut self, place: usize) -> Step {
        let found = match self.places[place].replace(Outcome::Completed(Json::null())) {
            Some(Outcome::Completed(found)) if found.is_null() => Remembered::default(),
            Some(Outcome::Completed(found)) => found.decode::<Remembered>().map_err(|error| {
                let message = format!("the conversation of the session cannot be read: {error}");
                LoopStop::of(Failure::new(kind::REFUSED, message))
            })?,
            Some(Outcome::Failed(failure)) => return Err(LoopStop::of(failure)),
            Some(Outcome::Canceled(_)) | None => return Ok(Some(LoopAction::Wait)),
        };
        self.recalled.done = true;
        // Somebody may have written it by hand, who does not count.
        self.recalled.revision = found.revision.max(self.recalled.found);
        self.recalled.items = found.items.len();
        self.own = found.items.into_iter().map(|item| ConversationItem::new(item, true)).collect();
        let known = self.own.len();
        self.replies = found.exchanges.into_iter().filter(|at| *at < known).collect();
        (self.from, self.summary, self.window) = (0, None, None);
        self.pinned.clear();
        self.stage = Stage::Ready;
        Ok(None)
    }

    /// Returns the last turn of a loop: its end, or the write of its conversation before that.
    pub(super) fn done(&mut self, value: Json, end: ModelEnd) -> LoopAction {
        if self.settings.conversation.is_none() {
            self.stage = Stage::Over;
            return LoopAction::Done { value, end };
        }
        self.stage = Stage::Keeping { place: self.places.len(), value, end };
        LoopAction::Begin(vec![Begin::Keep])
    }

    /// Handles the end of the write of the conversation.
    pub(super) fn kept(&mut self, place: usize, value: Json, end: ModelEnd) -> Step {
        let failure = match self.places.get(place) {
            Some(Some(Outcome::Completed(_))) => {
                self.stage = Stage::Over;
                return Ok(Some(LoopAction::Done { value, end }));
            }
            Some(Some(Outcome::Failed(failure))) => failure.clone(),
            Some(Some(Outcome::Canceled(_)) | None) | None => return Ok(Some(LoopAction::Wait)),
        };
        let data = failure.data.as_ref().map(Json::to_value).unwrap_or_default();
        if data["code"] != "revision_mismatch" || self.recalled.tries >= TRIES {
            return Err(LoopStop::of(failure));
        }
        self.recalled.tries += 1;
        self.recalled.found = data["revision"].as_u64().unwrap_or_default();
        self.recalled.done = false;
        self.repaired = false;
        self.stage = Stage::Ready;
        Ok(None)
    }

    /// Returns the conversation as it is to be stored.
    pub fn remembered(&self) -> Remembered {
        let summary = self.head().len();
        let before = self.asked_at().saturating_sub(self.from);
        let own = self.replies.iter().skip_while(|at| **at < self.asked_at());
        // The exchange of this loop starts with its question; the rest of its replies follow.
        let shift = |at: &usize| at - self.from + summary + self.start.len();
        let earlier = self.replies.iter().filter(|at| (self.from..self.asked_at()).contains(*at));
        let earlier = earlier.map(|at| at - self.from + summary);
        let asked = if self.from <= self.asked_at() { summary + before } else { 0 };
        let exchanges =
            earlier.chain([asked]).chain(own.skip(1).filter(|at| **at >= self.from).map(shift));
        Remembered {
            revision: self.recalled.revision + 1,
            items: self.discard_done(self.conversation()),
            exchanges: exchanges.collect(),
        }
    }

    /// Returns the revision that was read.
    pub fn recalled_revision(&self) -> u64 {
        self.recalled.revision
    }

    /// Returns what the model sees of the items before `end`, with the loop's question where it was
    /// asked: it is never removed.
    pub(super) fn seen_until(&self, end: usize) -> Vec<Value> {
        let end = end.max(self.from);
        let asked = self.asked_at().clamp(self.from, end);
        let head = self.head();
        let items =
            |range: std::ops::Range<usize>| self.own[range].iter().map(ConversationItem::shown);
        let start = self.start.iter().cloned();
        if self.recalled.done && self.from <= self.asked_at() {
            let before = head.into_iter().chain(items(self.from..asked));
            let start = start.filter(|_| end >= self.asked_at());
            return before.chain(start).chain(items(asked..end)).collect();
        }
        start.chain(head).chain(items(self.from..end)).collect()
    }

    /// The index in the loop's own items before which its question was asked.
    fn asked_at(&self) -> usize {
        self.recalled.items
    }
}
