//! Deltas of an answer in progress, kept for watchers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    engine::{EventView, rfc3339},
    protocol::{Json, ModelDelta},
};

/// The size of the deltas that are kept of an attempt in progress, in bytes; beyond it, the oldest
/// are dropped.
pub(crate) const KEPT: usize = 1 << 20;

/// The maximum size of consecutive deltas of one text that are merged, in bytes.
pub(crate) const CHUNK: usize = 8 << 10;

/// True if a run has watchers.
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

/// The deltas of one attempt, from its operator to its run.
pub(crate) struct Feed {
    pub(crate) audience: Arc<Audience>,
    pub(crate) agent: Arc<str>,
    pub(crate) step: u32,
    pub(crate) attempt: u32,
    pub(crate) log: Mutex<Log>,
}

/// The deltas of an attempt.
#[derive(Default)]
pub(crate) struct Log {
    /// The number of the next delta.
    pub(crate) next: u64,
    /// The number of the next delta to emit.
    pub(crate) shown: u64,
    /// The deltas that are kept, oldest first.
    pub(crate) said: VecDeque<Chunk>,
    /// Their size in bytes.
    pub(crate) bytes: usize,
    /// True if the run was notified that there is something to emit.
    pub(crate) told: bool,
}

/// A delta, or several consecutive deltas of one text.
pub(crate) struct Chunk {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The number of bytes of its text before it.
    pub(crate) at: usize,
    /// The number of bytes of its text that were emitted.
    pub(crate) cut: usize,
    pub(crate) size: usize,
    pub(crate) delta: ModelDelta,
}

/// A delta as emitted.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) n: u64,
    /// For a merged delta: the number of the first, and the bytes of its text before it.
    pub(crate) joined: Option<(u64, usize)>,
    pub(crate) delta: ModelDelta,
}

/// The data of an event of a delta.
#[derive(Serialize)]
pub(crate) struct DeltaData<'a> {
    pub(crate) step: u32,
    pub(crate) attempt: u32,
    /// Its number within the attempt, from 0: a gap means that deltas are missing.
    pub(crate) n: u64,
    /// For a merged delta: the number of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<u64>,
    /// For a merged delta: the number of bytes of the text before it.
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

    /// Adds a delta; returns true if the run must be notified.
    pub(crate) fn push(&self, delta: ModelDelta) -> bool {
        let mut log = self.log.lock();
        log.push(delta);
        // Checked under the lock: a watcher is counted before it reads the deltas so far.
        if self.audience.watches() {
            return !std::mem::replace(&mut log.told, true);
        }
        log.pass_over();
        false
    }

    /// Returns a delta as an event.
    pub(crate) fn event(&self, piece: &Piece, now_ms: u64) -> EventView {
        let Piece { n, joined, delta } = piece;
        let (first, at) = joined.unzip();
        let (step, attempt, agent) = (self.step, self.attempt, &*self.agent);
        let said = DeltaData { step, attempt, n: *n, first, at, agent, delta };
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

    /// Marks every delta as emitted, because there are no watchers.
    pub(crate) fn pass_over(&mut self) {
        self.shown = self.next;
        if let Some(last) = self.said.back_mut() {
            last.cut = last.size;
        }
    }

    /// Returns the deltas to emit to watchers.
    pub(crate) fn fresh(&mut self) -> Vec<Piece> {
        self.told = false;
        let (shown, from) = (self.shown, self.said.partition_point(|it| it.last < self.shown));
        let fresh = self.said.range(from..).map(|it| it.piece(it.first.max(shown), it.cut));
        let fresh = fresh.collect();
        self.said.range_mut(from..).for_each(|it| it.cut = it.size);
        self.shown = self.next;
        fresh
    }

    /// Returns every delta that is kept.
    pub(crate) fn past(&self) -> Vec<Piece> {
        self.said.iter().map(|chunk| chunk.piece(chunk.first, 0)).collect()
    }
}

impl Chunk {
    /// Returns the part of the chunk from a number on, which begins `cut` bytes within it.
    pub(crate) fn piece(&self, first: u64, cut: usize) -> Piece {
        let mut delta = self.delta.clone();
        if let Some(text) = delta.text_mut() {
            text.drain(..cut);
        }
        let joined = (first < self.last).then_some((first, self.at + cut));
        Piece { n: self.last, joined, delta }
    }
}

/// Returns the text that `next` continues, if both are deltas of the same text.
pub(crate) fn same_text<'a>(last: &'a mut ModelDelta, next: &ModelDelta) -> Option<&'a mut String> {
    let lane = |delta: &ModelDelta| delta.text().map(|(lane, _)| lane);
    let same = lane(last) == lane(next);
    last.text_mut().filter(|_| same)
}

/// Returns the approximate size of a delta in bytes; exact for a text.
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
        assert_eq!(feed.log.lock().fresh(), [one]);
        assert!(feed.push(text("two ")));
        assert!(!feed.push(text("three")));
        let rest = Piece { n: 2, joined: Some((1, 4)), delta: text("two three") };
        assert_eq!(feed.log.lock().fresh(), [rest]);
        assert_eq!(feed.log.lock().fresh(), []);
        let whole = Piece { n: 2, joined: Some((0, 0)), delta: text("one two three") };
        assert_eq!(feed.log.lock().past(), [whole]);
    }

    #[test]
    fn what_nobody_watched_is_kept_and_shown_to_nobody_but_who_asks() {
        let feed = feed(false);
        assert!(!feed.push(text("one ")));
        feed.audience.set(true);
        assert_eq!(feed.log.lock().fresh(), []);
        assert!(feed.push(text("two")));
        assert_eq!(texts(feed.log.lock().fresh()), "two");
        assert_eq!(texts(feed.log.lock().past()), "one two");
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
        let shown = feed.log.lock().fresh();
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
        let log = feed.log.lock();
        assert!(log.bytes <= KEPT, "{}", log.bytes);
        let past = log.past();
        let (first, at) = past[0].joined.unwrap();
        assert!(first > 0 && at as u64 == first * 1_000, "{first}, {at}");
        assert_eq!(past.last().unwrap().n, 2_999);
        let bytes: usize = past.iter().map(|it| size(&it.delta)).sum();
        assert_eq!((bytes, at + bytes), (log.bytes, 3_000_000));
    }
}
