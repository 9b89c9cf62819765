//! Pieces of an answer under way, kept for whoever watches.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;

use crate::{
    engine::{EventView, rfc3339},
    protocol::{Json, ModelDelta},
};

/// What is kept of an attempt that is under way, in bytes of its pieces; of more, the oldest goes.
pub(crate) const KEPT: usize = 1 << 20;

/// Pieces of one text that follow each other are put together up to so many bytes.
pub(crate) const CHUNK: usize = 8 << 10;

/// Whether anybody watches a run.
#[derive(Debug, Default)]
pub(crate) struct Audience(AtomicBool);

impl Audience {
    pub(crate) fn set(&self, watches: bool) {
        self.0.store(watches, Ordering::Relaxed);
    }

    pub(crate) fn watches(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one attempt says, from its operator to its run.
pub(crate) struct Feed {
    pub(crate) audience: Arc<Audience>,
    pub(crate) agent: Arc<str>,
    pub(crate) step: u32,
    pub(crate) attempt: u32,
    pub(crate) log: Mutex<Log>,
}

/// What an attempt has said.
#[derive(Default)]
pub(crate) struct Log {
    /// The number of the next piece.
    pub(crate) next: u64,
    /// The number of the next piece that is to be shown.
    pub(crate) shown: u64,
    /// What is kept, the oldest first.
    pub(crate) said: VecDeque<Chunk>,
    /// The bytes of it.
    pub(crate) bytes: usize,
    /// Whether the run was told that there is something to show.
    pub(crate) told: bool,
}

/// A piece, or pieces of one text that follow each other.
pub(crate) struct Chunk {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// How much of its text comes before it, in bytes.
    pub(crate) at: usize,
    /// How much of it was shown, in bytes, where it is a text.
    pub(crate) cut: usize,
    pub(crate) size: usize,
    pub(crate) delta: ModelDelta,
}

/// A piece as it is shown.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) n: u64,
    /// Of several in one: the number of the first, and the bytes of its text before it.
    pub(crate) joined: Option<(u64, usize)>,
    pub(crate) delta: ModelDelta,
}

/// What an event of a piece says.
#[derive(Serialize)]
pub(crate) struct Said<'a> {
    pub(crate) step: u32,
    pub(crate) attempt: u32,
    /// Its number within the attempt, from 0: who sees a gap has missed some.
    pub(crate) n: u64,
    /// Of several in one: the number of the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<u64>,
    /// Of several in one: how many bytes of the text come before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<usize>,
    pub(crate) agent: &'a str,
    pub(crate) delta: &'a ModelDelta,
}

impl Feed {
    pub(crate) fn new(
        audience: Arc<Audience>,
        agent: Arc<str>,
        (step, attempt): (u32, u32),
    ) -> Arc<Self> {
        Arc::new(Self { audience, agent, step, attempt, log: Mutex::default() })
    }

    /// Takes a piece; says whether the run is to be told that there is something.
    pub(crate) fn push(&self, delta: ModelDelta) -> bool {
        let mut log = self.log();
        log.push(delta);
        // Looked at under the lock: who comes to watch is counted before what was said is read.
        if self.audience.watches() {
            return !std::mem::replace(&mut log.told, true);
        }
        log.pass_over();
        false
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece as an event.
    pub(crate) fn event(&self, piece: &Piece, now_ms: u64) -> EventView {
        let Piece { n, joined, delta } = piece;
        let (first, at) = joined.unzip();
        let (step, attempt, agent) = (self.step, self.attempt, &*self.agent);
        let said = Said { step, attempt, n: *n, first, at, agent, delta };
        let data = Json::encode(&said).expect("a delta is plain data");
        EventView { seq: None, kind: "model.delta".into(), at: rfc3339(now_ms), data }
    }
}

impl Log {
    pub(crate) fn push(&mut self, delta: ModelDelta) {
        let n = self.next;
        self.next += 1;
        let size = size(&delta);
        self.bytes += size;
        let mut at = 0;
        if let Some(last) = self.said.back_mut()
            && let Some(before) = same_text(&mut last.delta, &delta)
        {
            if last.size + size <= CHUNK {
                before.push_str(delta.text().map_or("", |(_, text)| text));
                (last.last, last.size) = (n, last.size + size);
                return;
            }
            at = last.at + last.size;
        }
        self.said.push_back(Chunk { first: n, last: n, at, cut: 0, size, delta });
        while self.bytes > KEPT && self.said.len() > 1 {
            self.bytes -= self.said.pop_front().map_or(0, |oldest| oldest.size);
        }
    }

    /// Nobody is there who would be shown what was said until now.
    pub(crate) fn pass_over(&mut self) {
        self.shown = self.next;
        if let Some(last) = self.said.back_mut() {
            last.cut = last.size;
        }
    }

    /// What is to be shown to those who watch.
    pub(crate) fn fresh(&mut self) -> Vec<Piece> {
        self.told = false;
        let (shown, from) = (self.shown, self.said.partition_point(|it| it.last < self.shown));
        let fresh = self.said.range(from..).map(|it| it.piece(it.first.max(shown), it.cut));
        let fresh = fresh.collect();
        self.said.range_mut(from..).for_each(|it| it.cut = it.size);
        self.shown = self.next;
        fresh
    }

    /// Everything that is kept.
    pub(crate) fn past(&self) -> Vec<Piece> {
        self.said.iter().map(|chunk| chunk.piece(chunk.first, 0)).collect()
    }
}

impl Chunk {
    /// The piece that it is from a number on, which lies so many bytes within.
    pub(crate) fn piece(&self, first: u64, cut: usize) -> Piece {
        let mut delta = self.delta.clone();
        if let Some(text) = delta.text_mut() {
            text.drain(..cut);
        }
        let joined = (first < self.last).then_some((first, self.at + cut));
        Piece { n: self.last, joined, delta }
    }
}

/// The text that a piece goes on with, if `next` is more of the same.
pub(crate) fn same_text<'a>(last: &'a mut ModelDelta, next: &ModelDelta) -> Option<&'a mut String> {
    let lane = |delta: &ModelDelta| delta.text().map(|(lane, _)| lane);
    let same = lane(last) == lane(next);
    last.text_mut().filter(|_| same)
}

/// About how many bytes a piece has; of a text exactly.
pub(crate) fn size(delta: &ModelDelta) -> usize {
    match delta {
        ModelDelta::Item { begins: item, .. } | ModelDelta::Done { whole: item, .. } => {
            item.to_string().len()
        }
        text => text.text().map_or(0, |(_, text)| text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(delta: &str) -> ModelDelta {
        ModelDelta::Text { item: 0, part: 0, delta: delta.to_owned() }
    }

    fn feed(watched: bool) -> Arc<Feed> {
        let audience = Arc::new(Audience::default());
        audience.set(watched);
        Feed::new(audience, "w".into(), (1, 1))
    }

    fn texts(pieces: Vec<Piece>) -> String {
        pieces.into_iter().filter_map(|mut it| it.delta.text_mut().cloned()).collect()
    }

    #[test]
    fn a_run_is_told_once_and_takes_all_that_came_since() {
        let feed = feed(true);
        assert!(feed.push(text("one ")));
        let one = Piece { n: 0, joined: None, delta: text("one ") };
        assert_eq!(feed.log().fresh(), [one]);
        assert!(feed.push(text("two ")));
        assert!(!feed.push(text("three")));
        let rest = Piece { n: 2, joined: Some((1, 4)), delta: text("two three") };
        assert_eq!(feed.log().fresh(), [rest]);
        assert_eq!(feed.log().fresh(), []);
        let whole = Piece { n: 2, joined: Some((0, 0)), delta: text("one two three") };
        assert_eq!(feed.log().past(), [whole]);
    }

    #[test]
    fn what_nobody_watched_is_kept_and_shown_to_nobody_but_who_asks() {
        let feed = feed(false);
        assert!(!feed.push(text("one ")));
        feed.audience.set(true);
        assert_eq!(feed.log().fresh(), []);
        assert!(feed.push(text("two")));
        assert_eq!(texts(feed.log().fresh()), "two");
        assert_eq!(texts(feed.log().past()), "one two");
    }

    #[test]
    fn other_texts_and_items_are_pieces_of_their_own() {
        let feed = feed(true);
        let reasons = ModelDelta::Reasoning { item: 0, part: 0, delta: "hm".to_owned() };
        let whole = ModelDelta::Done { item: 0, whole: serde_json::json!({ "id": "a" }) };
        let all = [reasons, text("yes"), whole, text("no")];
        for delta in all.clone() {
            feed.push(delta);
        }
        let shown = feed.log().fresh();
        assert_eq!(shown.iter().map(|it| it.n).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(shown.iter().all(|it| it.joined.is_none()), "{shown:?}");
        assert_eq!(shown.into_iter().map(|it| it.delta).collect::<Vec<_>>(), all);
    }

    #[test]
    fn of_an_answer_beyond_all_bounds_the_beginning_goes_and_a_gap_says_so() {
        let feed = feed(false);
        let word = "w".repeat(1_000);
        for _ in 0..3_000 {
            feed.push(text(&word));
        }
        let log = feed.log();
        assert!(log.bytes <= KEPT, "{}", log.bytes);
        let past = log.past();
        let (first, at) = past[0].joined.unwrap();
        assert!(first > 0 && at as u64 == first * 1_000, "{first}, {at}");
        assert_eq!(past.last().unwrap().n, 2_999);
        let bytes: usize = past.iter().map(|it| size(&it.delta)).sum();
        assert_eq!((bytes, at + bytes), (log.bytes, 3_000_000));
    }
}
