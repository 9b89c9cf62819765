//! Pieces of answers under way: from an operator to whoever watches its run.
//!
//! They are lossy, and cheap where nobody looks: an attempt asks [`Audience`] before it says
//! anything, at most a bounded number of pieces of an attempt are on their way to its run, and a
//! subscriber that is behind gets what is durable and not them. They change nothing of a run, read
//! no run into memory, and nothing of them is in a journal.
//!
//! A flow can hear them too, with a function (`on_delta`). It is called in a copy of the flow, which
//! is the flow told its past once more: so nothing that it does reaches the flow, and a replay,
//! which has no pieces, comes to the same. What it says (`ctx:log`, `ctx:status`, `ctx:publish`) are
//! lossy events; anything else of `ctx` is an error, and an error is the last that it hears.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use serde::Serialize;

use super::{
    EventView,
    events::{self, BUFFER},
    message::RunMsg,
    retell::Stop,
    rfc3339,
    run::Run,
    shard::Shard,
    shared::Shared,
};
use crate::{
    journal::StepKey,
    lua::ScriptFlow,
    protocol::{Failure, Json, ModelDelta, failure::kind},
};

/// Pieces of one attempt that may be on their way to its run; more are lost.
const ON_THE_WAY: usize = 256;

/// Copies of a run's flow at a time; what would need one more is not heard.
const COPIES: usize = 4;

/// Whether anybody watches a run.
#[derive(Debug, Default)]
pub(crate) struct Audience(AtomicBool);

impl Audience {
    pub(super) fn set(&self, watches: bool) {
        self.0.store(watches, Ordering::Relaxed);
    }

    fn watches(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A piece of an answer, on its way to its run.
pub(crate) struct Piece {
    pub(super) step: u32,
    pub(super) attempt: u32,
    pub(super) n: u64,
    pub(super) agent: Arc<str>,
    pub(super) delta: ModelDelta,
    pub(super) _way: Way,
}

/// A place among the pieces of an attempt that are on their way; it is free again when this is
/// dropped.
pub(crate) struct Way(Arc<AtomicUsize>);

impl Drop for Way {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the pieces of one attempt go.
pub(super) struct Pieces {
    audience: Arc<Audience>,
    agent: Arc<str>,
    on_the_way: Arc<AtomicUsize>,
    /// How many were said.
    said: AtomicU64,
}

/// What an event of a piece says.
#[derive(Serialize)]
struct Said<'a> {
    step: u32,
    attempt: u32,
    /// Its number within the attempt, from 0: who sees a gap has missed some.
    n: u64,
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

impl Pieces {
    pub(super) fn new(audience: Arc<Audience>, agent: Arc<str>) -> Self {
        Self { audience, agent, on_the_way: Arc::default(), said: AtomicU64::new(0) }
    }

    /// Sends a piece, if somebody watches and there is room for it.
    pub(super) fn send(
        &self,
        shared: &Shared,
        run: u64,
        (step, attempt): (u32, u32),
        delta: ModelDelta,
    ) {
        let n = self.said.fetch_add(1, Ordering::Relaxed);
        if !self.audience.watches() {
            return;
        }
        let before = self.on_the_way.fetch_add(1, Ordering::Relaxed);
        let way = Way(Arc::clone(&self.on_the_way));
        if before >= ON_THE_WAY {
            return;
        }
        let agent = Arc::clone(&self.agent);
        let piece = Box::new(Piece { step, attempt, n, agent, delta, _way: way });
        shared.tell(run, RunMsg::Delta(piece));
    }
}

/// Notes whether there is anybody for the pieces of a run.
pub(super) fn count_audience(run: &Run) {
    let hears = run.flow.as_ref().is_some_and(ScriptFlow::has_listeners);
    run.audience.set(hears || !run.subscribers.is_empty());
}

impl Shard {
    /// Hands a piece to the function that the flow gave for it, and to whoever watches.
    pub(super) fn take_piece(&mut self, run: &mut Run, piece: &Piece) {
        if run.failed.is_some() || run.is_ended() {
            return;
        }
        run.subscribers.retain(|subscriber| !subscriber.is_closed());
        count_audience(run);
        let Piece { step, attempt, n, agent, delta, _way } = piece;
        let said = Said { step: *step, attempt: *attempt, n: *n, agent, delta };
        if !run.subscribers.is_empty() {
            let data = Json::encode(&said).expect("a delta is plain data");
            show(run, "model.delta", data, self.now_ms);
        }
        if let Some(key) = heard_as(run, *step) {
            let heard = Heard { step: *step, attempt: *attempt, agent, delta };
            let heard = Json::encode(&heard).expect("a delta is plain data");
            self.hear(run, &key, &heard);
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
                    show(run, kind, data.into(), self.now_ms);
                }
            }
            Err(failure) => {
                let message = format!("on_delta hears no more: {failure}");
                tracing::warn!(run = %run.id, message);
                let data = serde_json::json!({ "level": "warn", "message": message });
                show(run, "log", data.into(), self.now_ms);
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

/// Shows something to whoever watches and is not behind.
fn show(run: &Run, kind: &str, data: Json, now_ms: u64) {
    let event = EventView { seq: None, kind: kind.into(), at: rfc3339(now_ms), data };
    for subscriber in &run.subscribers {
        // Half of the room is for what is durable: a flood of pieces cuts nobody off.
        if subscriber.capacity() > BUFFER / 2 {
            // Who is full or gone is seen to with the next durable event.
            let _ = subscriber.try_send(event.clone());
        }
    }
}
