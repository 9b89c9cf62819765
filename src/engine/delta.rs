//! Pieces of answers under way: from an operator to whoever watches its run.
//!
//! They are lossy, and cheap where nobody looks: an attempt asks [`Audience`] before it says
//! anything, at most a bounded number of pieces of an attempt are on their way to its run, and a
//! subscriber that is behind gets what is durable and not them. They change nothing of a run, read
//! no run into memory, and nothing of them is in a journal.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use serde::Serialize;

use super::{EventView, events::BUFFER, message::RunMsg, rfc3339, run::Run, shared::Shared};
use crate::protocol::{Json, ModelDelta};

/// Pieces of one attempt that may be on their way to its run; more are lost.
const ON_THE_WAY: usize = 256;

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

/// Shows a piece to whoever watches and is not behind.
pub(super) fn show(run: &mut Run, piece: &Piece, now_ms: u64) {
    let Piece { step, attempt, n, agent, delta, _way } = piece;
    run.subscribers.retain(|subscriber| !subscriber.is_closed());
    if run.subscribers.is_empty() {
        run.audience.set(false);
        return;
    }
    let said = Said { step: *step, attempt: *attempt, n: *n, agent, delta };
    let event = EventView {
        seq: None,
        kind: "model.delta".into(),
        at: rfc3339(now_ms),
        data: Json::encode(&said).expect("a delta is plain data"),
    };
    for subscriber in &run.subscribers {
        // Half of the room is for what is durable: a flood of pieces cuts nobody off.
        if subscriber.capacity() > BUFFER / 2 {
            // Who is full or gone is seen to with the next durable event.
            let _ = subscriber.try_send(event.clone());
        }
    }
}
