//! Pieces of answers under way: from an operator to whoever watches its run.
//!
//! What an attempt says is kept while it is under way, as far as [`KEPT`] goes: who comes to watch
//! in the middle of an answer is shown it from its beginning, and then hears the rest as it comes.
//! The run is told that there is something new, not what: it takes all of it at once, so a run that
//! is behind gets fewer and longer pieces, and a flood of them fills no queue.
//!
//! Pieces are lossy, and cheap where nobody looks: a subscriber that is behind gets what is durable
//! and not them. They change nothing of a run, read no run into memory, and nothing of them is in a
//! journal.
//!
//! A flow can hear them too, with a function (`on_delta`). It is called in a copy of the flow, which
//! is the flow told its past once more: so nothing that it does reaches the flow, and a replay,
//! which has no pieces, comes to the same. What it says (`ctx:log`, `ctx:status`, `ctx:publish`) are
//! lossy events; anything else of `ctx` is an error, and an error is the last that it hears.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;

use crate::engine::{
    EventView, rfc3339, run::readers::Subscriber, run::resident::Run, shard::retell::Stop,
    shard::serve::Shard, verbs::events,
};
use crate::{
    journal::StepKey,
    lua::ScriptFlow,
    protocol::{Failure, Json, ModelDelta, failure::kind},
};

/// What is kept of an attempt that is under way, in bytes of its pieces; of more, the oldest goes.
const KEPT: usize = 1 << 20;

/// Pieces of one text that follow each other are put together up to so many bytes.
const CHUNK: usize = 8 << 10;

/// Copies of a run's flow at a time; what would need one more is not heard.
const COPIES: usize = 4;

/// Whether anybody watches a run.
#[derive(Debug, Default)]
pub(crate) struct Audience(AtomicBool);

impl Audience {
    pub(crate) fn set(&self, watches: bool) {
        self.0.store(watches, Ordering::Relaxed);
    }

    fn watches(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one attempt says, from its operator to its run.
pub(crate) struct Feed {
    audience: Arc<Audience>,
    agent: Arc<str>,
    step: u32,
    attempt: u32,
    log: Mutex<Log>,
}

/// What an attempt has said.
#[derive(Default)]
struct Log {
    /// The number of the next piece.
    next: u64,
    /// The number of the next piece that is to be shown.
    shown: u64,
    /// What is kept, the oldest first.
    said: VecDeque<Chunk>,
    /// The bytes of it.
    bytes: usize,
    /// Whether the run was told that there is something to show.
    told: bool,
}

/// A piece, or pieces of one text that follow each other.
struct Chunk {
    first: u64,
    last: u64,
    /// How much of its text comes before it, in bytes.
    at: usize,
    /// How much of it was shown, in bytes, where it is a text.
    cut: usize,
    size: usize,
    delta: ModelDelta,
}

/// A piece as it is shown.
#[derive(Debug, PartialEq)]
struct Piece {
    n: u64,
    /// Of several in one: the number of the first, and the bytes of its text before it.
    joined: Option<(u64, usize)>,
    delta: ModelDelta,
}

/// What an event of a piece says.
#[derive(Serialize)]
struct Said<'a> {
    step: u32,
    attempt: u32,
    /// Its number within the attempt, from 0: who sees a gap has missed some.
    n: u64,
    /// Of several in one: the number of the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    /// Of several in one: how many bytes of the text come before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<usize>,
    agent: &'a str,
    delta: &'a ModelDelta,
}

/// What a flow's function hears of a piece: all of it in one table.
#[derive(Serialize)]
struct Heard<'a> {
    step: u32,
    attempt: u32,
    agent: &'a str,
    #[serde(flatten)]
    delta: &'a ModelDelta,
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

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece as an event.
    fn event(&self, piece: &Piece, now_ms: u64) -> EventView {
        let Piece { n, joined, delta } = piece;
        let (first, at) = joined.unzip();
        let (step, attempt, agent) = (self.step, self.attempt, &*self.agent);
        let said = Said { step, attempt, n: *n, first, at, agent, delta };
        let data = Json::encode(&said).expect("a delta is plain data");
        EventView { seq: None, kind: "model.delta".into(), at: rfc3339(now_ms), data }
    }
}

impl Log {
    fn push(&mut self, delta: ModelDelta) {
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
    fn pass_over(&mut self) {
        self.shown = self.next;
        if let Some(last) = self.said.back_mut() {
            last.cut = last.size;
        }
    }

    /// What is to be shown to those who watch.
    fn fresh(&mut self) -> Vec<Piece> {
        self.told = false;
        let (shown, from) = (self.shown, self.said.partition_point(|it| it.last < self.shown));
        let fresh = self.said.range(from..).map(|it| it.piece(it.first.max(shown), it.cut));
        let fresh = fresh.collect();
        self.said.range_mut(from..).for_each(|it| it.cut = it.size);
        self.shown = self.next;
        fresh
    }

    /// Everything that is kept.
    fn past(&self) -> Vec<Piece> {
        self.said.iter().map(|chunk| chunk.piece(chunk.first, 0)).collect()
    }
}

impl Chunk {
    /// The piece that it is from a number on, which lies so many bytes within.
    fn piece(&self, first: u64, cut: usize) -> Piece {
        let mut delta = self.delta.clone();
        if let Some(text) = delta.text_mut() {
            text.drain(..cut);
        }
        let joined = (first < self.last).then_some((first, self.at + cut));
        Piece { n: self.last, joined, delta }
    }
}

/// The text that a piece goes on with, if `next` is more of the same.
fn same_text<'a>(last: &'a mut ModelDelta, next: &ModelDelta) -> Option<&'a mut String> {
    let lane = |delta: &ModelDelta| delta.text().map(|(lane, _)| lane);
    let same = lane(last) == lane(next);
    last.text_mut().filter(|_| same)
}

/// About how many bytes a piece has; of a text exactly.
fn size(delta: &ModelDelta) -> usize {
    match delta {
        ModelDelta::Item { begins: item, .. } | ModelDelta::Done { whole: item, .. } => {
            item.to_string().len()
        }
        text => text.text().map_or(0, |(_, text)| text.len()),
    }
}

/// Notes whether there is anybody for the pieces of a run.
pub(crate) fn count_audience(run: &Run) {
    let hears = run.flow.as_ref().is_some_and(ScriptFlow::has_listeners);
    run.audience.set(hears || !run.subscribers.is_empty());
}

impl Shard {
    /// Hands what an attempt said to the function that the flow gave for it, and to whoever
    /// watches.
    pub(crate) fn take_pieces(&mut self, run: &mut Run, feed: &Feed) {
        let fresh = feed.log().fresh();
        if run.failed.is_some() || run.is_ended() {
            return;
        }
        run.subscribers.retain(|subscriber| !subscriber.is_closed());
        count_audience(run);
        self.hand_out(run, feed, &fresh);
    }

    fn hand_out(&mut self, run: &mut Run, feed: &Feed, fresh: &[Piece]) {
        for piece in fresh {
            if !run.subscribers.is_empty() {
                show(run, &feed.event(piece, self.now_ms));
            }
            if let Some(key) = heard_as(run, feed.step) {
                let (step, attempt, agent) = (feed.step, feed.attempt, &*feed.agent);
                let heard = Heard { step, attempt, agent, delta: &piece.delta };
                let heard = Json::encode(&heard).expect("a delta is plain data");
                self.hear(run, &key, &heard);
            }
        }
    }

    /// Shows a new subscriber what the attempts under way have said; from then on it hears of them
    /// with all others.
    pub(crate) fn show_past(&mut self, run: &mut Run, subscriber: &Subscriber) {
        for feed in feeds(run) {
            // Taken together: nothing comes to the new one twice, and nothing is between.
            let (fresh, past) = {
                let mut log = feed.log();
                (log.fresh(), log.past())
            };
            self.hand_out(run, &feed, &fresh);
            for piece in past {
                // Who takes no more is seen to with the next durable event.
                subscriber.send(&feed.event(&piece, self.now_ms));
            }
        }
    }

    /// Calls a flow's function in a copy of the flow; what it says is shown.
    fn hear(&mut self, run: &mut Run, key: &StepKey, piece: &Json) {
        let known = run.copies.iter().position(|copy| copy.listens(key));
        let heard = match known {
            Some(at) => run.copies[at].hear(key, piece, self.now_ms),
            None => match self.copy_flow(run, key) {
                Ok(Some(mut copy)) => {
                    let heard = copy.hear(key, piece, self.now_ms);
                    run.copies.push(copy);
                    heard
                }
                Ok(None) => return,
                Err(why) => Err(Failure::new(kind::LIMIT, why)),
            },
        };
        match heard {
            Ok(notes) => {
                for note in notes {
                    let (kind, data) = events::noted(&note);
                    show(run, &said(kind, data, self.now_ms));
                }
            }
            Err(failure) => {
                let message = format!("on_delta hears no more: {failure}");
                tracing::warn!(run = %run.id, message);
                let data = serde_json::json!({ "level": "warn", "message": message });
                show(run, &said("log", data, self.now_ms));
                for flow in run.flow.iter_mut().chain(&mut run.copies) {
                    flow.forget_listener(key);
                }
            }
        }
    }

    /// The flow as it is, told its past once more: whatever becomes of it, the flow itself is the
    /// same. Nothing where there are enough copies.
    fn copy_flow(&mut self, run: &mut Run, key: &StepKey) -> Result<Option<ScriptFlow>, String> {
        let flow = run.flow.as_ref();
        let open =
            |copy: &ScriptFlow| copy.listened().any(|it| flow.is_some_and(|f| f.listens(it)));
        run.copies.retain(open);
        if run.copies.len() >= COPIES {
            return Ok(None);
        }
        let Some(program) = run.program.clone() else { return Ok(None) };
        let entries =
            self.shared.store.entries(run.num, 0).map_err(|error| format!("failed to {error}"))?;
        match self.replay(run, &program, &entries) {
            Ok(retold) if retold.flow.listens(key) => Ok(Some(retold.flow)),
            Ok(_) => Ok(None),
            Err(Stop::Diverged(why)) => Err(why.message),
            Err(Stop::Broken(why)) => Err(format!("its VM has no room: {why}")),
        }
    }
}

/// The open step whose function hears what a step says: its own, or that of one that it is a part of.
fn heard_as(run: &Run, mut step: u32) -> Option<StepKey> {
    let flow = run.flow.as_ref().filter(|flow| flow.has_listeners())?;
    loop {
        let it = &run.chain.step(step)?.scheduled;
        if flow.listens(&it.key) {
            return Some(it.key.clone());
        }
        step = it.parent?;
    }
}

/// What the attempts of a run that are under way say, in the order of their steps.
fn feeds(run: &Run) -> Vec<Arc<Feed>> {
    let mut live: Vec<(u32, Arc<Feed>)> = run
        .open
        .numbers()
        .filter_map(|number| Some((number, Arc::clone(&run.task(number)?.live.as_ref()?.feed))))
        .collect();
    live.sort_by_key(|(number, _)| *number);
    live.into_iter().map(|(_, feed)| feed).collect()
}

fn said(kind: &str, data: serde_json::Value, now_ms: u64) -> EventView {
    EventView { seq: None, kind: kind.into(), at: rfc3339(now_ms), data: data.into() }
}

/// Shows something to whoever watches and is not behind.
fn show(run: &Run, event: &EventView) {
    for subscriber in &run.subscribers {
        subscriber.offer(event);
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
