//! Compaction: shortens a conversation that grew too long, between two turns.
//!
//! The cut is always at the start of a model's answer, so no call is separated from its output. The
//! items before the loop's own always stay. If the agent asks for it, each turn to be removed is
//! first written to state verbatim. If a required write fails, nothing is removed.

use serde_json::{Value, json};

use super::{Begin, LoopAction, ResponseFlow, Stage, user_message};
use crate::{
    journal::Outcome,
    protocol::{CompactionEvent, LifecycleEvent, ModelReply},
};

/// The prompt that asks a model for a summary.
pub const SUM_UP: &str = "Sum up the conversation so far for yourself, so that you can go on \
    without it: what was asked, what was found, what was decided and what is left to do. Keep names, \
    numbers and paths as they are.";

impl ResponseFlow {
    /// Compacts the conversation if it is too long. Returns a turn if steps are needed for that.
    pub(super) fn compact(&mut self) -> Option<LoopAction> {
        let compaction = self.settings.compaction.clone()?;
        if self.looked_at == Some(self.sums.turns) {
            return None;
        }
        self.looked_at = Some(self.sums.turns);
        let before = self.window.unwrap_or_else(|| tokens(&self.conversation()));
        if before < compaction.at_tokens {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a percentage needs no more")]
        let fill_percent = before as f64 / compaction.at_tokens.max(1) as f64 * 100.0;
        self.tell(CompactionEvent::ContextPressure {
            operator: self.operator(),
            fill_percent,
            tokens_used: before,
            tokens_available: compaction.at_tokens.saturating_sub(before),
        });
        let kept = self.replies.len().checked_sub(compaction.keep as usize);
        let cut = kept.and_then(|at| self.replies.get(at).copied());
        let Some(cut) = cut.filter(|cut| *cut > self.from) else {
            let reason = format!("there is nothing before the last {} turn(s)", compaction.keep);
            self.tell(CompactionEvent::CompactionSkipped { operator: self.operator(), reason });
            return None;
        };
        let all = tokens(&self.conversation());
        if self.hide_first(cut) {
            let freed = all.saturating_sub(tokens(&self.conversation()));
            self.tell(CompactionEvent::CompactionComplete {
                operator: self.operator(),
                strategy: "compress_first".to_owned(),
                tokens_freed: freed,
            });
            if before.saturating_sub(freed) < compaction.at_tokens {
                return None;
            }
        }
        let Some(flush) = &self.settings.flush else { return self.cut(cut) };
        let scope = flush.scope.clone();
        self.tell(CompactionEvent::PreCompactionFlush { operator: self.operator(), scope });
        self.stage = Stage::Flushing { first: self.places.len(), cut };
        let leaves = |at: &&usize| (self.from..cut).contains(*at);
        let (before, gone) = (
            self.replies.iter().filter(|at| **at < self.from).count(),
            self.replies.iter().filter(leaves).count(),
        );
        let turns = (before..before + gone).map(|place| Begin::Flush { turn: number(place + 1) });
        Some(LoopAction::Begin(turns.collect()))
    }

    /// Removes the items before `cut`. Returns a turn if the model must summarize them first.
    fn cut(&mut self, cut: usize) -> Option<LoopAction> {
        if self.settings.compaction.as_ref().is_some_and(|it| it.summarize) {
            let place = self.places.len();
            self.stage = Stage::Compacting { place, cut };
            return Some(LoopAction::Begin(vec![Begin::Compact { turn: self.sums.turns }]));
        }
        self.shorten(cut, None, "drop");
        None
    }

    /// Returns the state key for a turn.
    pub fn flush_key(&self, turn: u32) -> String {
        let keys = self.settings.flush.as_ref().map_or("", |flush| flush.keys.as_str());
        format!("{keys}{turn}")
    }

    /// Returns the items of a turn, to be written to state.
    pub fn turn_items(&self, turn: u32) -> Vec<Value> {
        let place = turn.saturating_sub(1) as usize;
        let end = self.replies.get(place + 1).copied().unwrap_or(self.own.len());
        let begin = match place {
            0 => 0,
            _ => self.replies.get(place).copied().unwrap_or(end),
        };
        self.own[begin.min(end)..end].iter().map(|own| own.item.clone()).collect()
    }

    /// Handles the end of the writes of old turns.
    pub(super) fn flushed(&mut self, first: usize, cut: usize) -> Option<LoopAction> {
        let flush = self.settings.flush.clone()?;
        let before = self.replies.iter().filter(|at| **at < self.from).count();
        let ended = self.places[first..].iter();
        let failed: Vec<(u32, String)> = ended
            .enumerate()
            .filter_map(|(place, outcome)| {
                let error = match outcome {
                    Some(Outcome::Failed(failure)) => failure.message.clone(),
                    Some(Outcome::Canceled(why)) => why.clone(),
                    Some(Outcome::Completed(_)) | None => return None,
                };
                Some((number(before + place + 1), error))
            })
            .collect();
        for (turn, error) in &failed {
            let (operator, scope) = (self.operator(), flush.scope.clone());
            let (key, error) = (self.flush_key(*turn), error.clone());
            self.tell(CompactionEvent::FlushFailed { operator, scope, key, error });
        }
        if flush.required && !failed.is_empty() {
            let reason = format!("{} turn(s) could not be written to state", failed.len());
            self.tell(CompactionEvent::CompactionSkipped { operator: self.operator(), reason });
            return None;
        }
        self.cut(cut)
    }

    /// Returns the conversation to be summarized.
    pub fn to_sum_up(&self) -> Vec<Value> {
        let end = match self.stage {
            Stage::Compacting { cut, .. } => cut,
            _ => self.own.len(),
        };
        self.seen_until(end).into_iter().chain([user_message(SUM_UP)]).collect()
    }

    /// Handles the summary. If it failed, the conversation stays as it is.
    pub(super) fn summed_up(&mut self, place: usize, cut: usize) {
        let outcome = self.places[place].replace(Outcome::Completed(crate::protocol::Json::null()));
        let text = match outcome {
            Some(Outcome::Completed(reply)) => {
                reply.decode::<ModelReply>().map(|reply| reply.text()).map_err(|it| it.to_string())
            }
            Some(Outcome::Failed(failure)) => Err(failure.message),
            Some(Outcome::Canceled(why)) => Err(why),
            None => Err("it did not end".to_owned()),
        };
        match text {
            Ok(text) if !text.trim().is_empty() => self.shorten(cut, Some(text), "summarize"),
            nothing => {
                let error = nothing.err().unwrap_or_else(|| "the summary is empty".to_owned());
                let strategy = "summarize".to_owned();
                let operator = self.operator();
                self.tell(CompactionEvent::CompactionFailed { operator, error, strategy });
            }
        }
    }

    fn shorten(&mut self, cut: usize, summary: Option<String>, strategy: &str) {
        let before = tokens(&self.conversation());
        let pinned = self.pinned_in(self.from..cut);
        let lost = cut - self.from - pinned.len();
        self.pinned.extend(pinned);
        self.from = cut;
        if summary.is_some() {
            self.summary = summary;
        }
        let now = self.conversation();
        let after = tokens(&now);
        let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
        self.tell(CompactionEvent::CompactionComplete {
            operator: self.operator(),
            strategy: strategy.to_owned(),
            tokens_freed: before.saturating_sub(after),
        });
        self.tell(CompactionEvent::CompactionQuality {
            operator: self.operator(),
            tokens_before: before,
            tokens_after: after,
            items_preserved: count(now.len()),
            items_lost: count(lost),
        });
    }

    /// Emits an event if the reply says that the provider compacted the conversation itself.
    pub(super) fn tell_managed(&mut self, reply: &ModelReply) {
        if !reply.items.iter().any(|item| item["type"] == "compaction") {
            return;
        }
        let used = self.window.unwrap_or(0);
        self.tell(CompactionEvent::ProviderManaged {
            operator: self.operator(),
            provider: reply.model.clone(),
            tokens_before: used,
            tokens_after: tokens(&reply.items),
            summary: None,
        });
    }

    fn tell(&mut self, event: CompactionEvent) {
        self.events.push(LifecycleEvent::Compaction(event));
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// Estimates the number of tokens of items, at four bytes each.
fn tokens(items: &[Value]) -> u64 {
    json!(items).to_string().len() as u64 / 4
}
