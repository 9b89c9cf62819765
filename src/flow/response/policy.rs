//! The policies of tools: what happens to their calls when the conversation is shortened.
//!
//! | policy | the calls of the tool |
//! |---|---|
//! | pinned | stay, with their outputs |
//! | normal | go with their turn |
//! | compress first | lose their outputs before any turn goes |
//! | discard when done | lose their outputs in the conversation that the session keeps |

use std::ops::Range;

use serde_json::Value;

use super::{ConversationItem, ResponseFlow, summary_item};
use crate::protocol::CompactionPolicy;

/// Stands for an output that was removed.
pub const REMOVED: &str = "[removed to save space]";

impl ResponseFlow {
    /// Returns what the model sees in place of the items before `from`: the summary, and the calls
    /// that are pinned.
    pub(super) fn head(&self) -> Vec<Value> {
        let summary = self.summary.as_deref().map(summary_item);
        summary.into_iter().chain(self.pinned.iter().cloned()).collect()
    }

    /// Hides the outputs before `cut` whose tools go first; returns true if there are some.
    pub(super) fn hide_first(&mut self, cut: usize) -> bool {
        let items: Vec<&Value> = self.own.iter().map(|own| &own.item).collect();
        let goes = |at: &usize| {
            !self.own[*at].hidden
                && items[*at]["type"] == "function_call_output"
                && items[*at]["output"].to_string().len() > REMOVED.len()
                && self.policy(&items, *at) == CompactionPolicy::CompressFirst
        };
        let gone: Vec<usize> = (self.from..cut).filter(goes).collect();
        for at in &gone {
            self.own[*at].hidden = true;
        }
        !gone.is_empty()
    }

    /// Returns the pinned calls of a range with their outputs, and what the model thought before
    /// them, without which some providers refuse a call.
    pub(super) fn pinned_in(&self, range: Range<usize>) -> Vec<Value> {
        let items: Vec<&Value> = self.own.iter().map(|own| &own.item).collect();
        let (mut kept, mut thoughts) = (Vec::new(), Vec::new());
        for at in range {
            let is_call = items[at]["type"] == "function_call";
            match items[at]["type"].as_str() {
                Some("reasoning") => thoughts.push(items[at].clone()),
                Some("function_call" | "function_call_output")
                    if self.policy(&items, at) == CompactionPolicy::Pinned =>
                {
                    kept.append(&mut thoughts);
                    kept.push(items[at].clone());
                }
                _ if is_call => {}
                _ => thoughts.clear(),
            }
        }
        kept
    }

    /// Removes the outputs from a conversation whose work is done.
    pub(super) fn discard_done(&self, mut items: Vec<Value>) -> Vec<Value> {
        let seen: Vec<&Value> = items.iter().collect();
        let goes = |at: &usize| {
            seen[*at]["type"] == "function_call_output"
                && self.policy(&seen, *at) == CompactionPolicy::DiscardWhenDone
        };
        let gone: Vec<usize> = (0..seen.len()).filter(goes).collect();
        for at in gone {
            items[at]["output"] = REMOVED.into();
        }
        items
    }

    /// Returns the policy of the tool that an item belongs to: of a call, or of its output.
    fn policy(&self, items: &[&Value], at: usize) -> CompactionPolicy {
        let item = items[at];
        let is_its =
            |call: &&&Value| call["type"] == "function_call" && call["call_id"] == item["call_id"];
        let call = match item["type"].as_str() {
            Some("function_call") => Some(item),
            // A provider may use an id again: the latest call before it is its own.
            _ => items[..at].iter().rev().find(is_its).copied(),
        };
        let face = call.and_then(|call| self.face(call["name"].as_str()?));
        face.map_or_else(CompactionPolicy::default, |face| face.policy)
    }
}

impl ConversationItem {
    pub(super) fn new(item: Value, aside: bool) -> Self {
        Self { item, aside, hidden: false }
    }

    /// Returns the item as the model sees it.
    pub(super) fn shown(&self) -> Value {
        let mut item = self.item.clone();
        if self.hidden {
            item["output"] = REMOVED.into();
        }
        item
    }
}
