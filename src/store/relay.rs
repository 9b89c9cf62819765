//! A writer whose batches another process commits.
//!
//! Owns the batches whose fate is open, and their order: each is sent as a [`Parcel`], and its fate comes
//! back by its number. The acks of one run are called in the order of its batches, as other writers do,
//! also if a later one is refused before the fate of an earlier one is known. The other side gives the
//! rows their real numbers ([`Renumbering`]). Refuses the writes of a host. The engine of a node that
//! helps writes through it; the host of that node is the [`Carrier`].

mod parcel;
mod renumbering;

pub use parcel::{Delivered, Parcel};
pub use renumbering::{PROVISIONAL, Renumbering};

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    mem,
    pin::pin,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{Ack, Answers, Batch, Changed, Health, Numbers, StoreError, Writer, fair::run_of};

/// The number of batches with an open fate from which on the relay counts as full.
const WAITING: usize = 1_024;
/// The maximum number of their bytes, in addition to one batch of any size.
const WAITING_BYTES: usize = 16 << 20;

/// Takes parcels to the node that commits them.
pub trait Carrier: Send + Sync {
    /// Takes the parcel with this number. Called in the order of the numbers, never by two threads at
    /// once. Must not block. Its fate comes back through [`Relay::settled`].
    fn send(&self, number: u64, parcel: Parcel);
}

/// A writer whose batches another process commits.
///
/// Its numbers of rows are provisional (see [`PROVISIONAL`]), and those of runs are none: a run is never
/// created through it.
pub struct Relay {
    carrier: Arc<dyn Carrier>,
    state: Mutex<State>,
    numbers: Numbers,
    health: watch::Sender<Health>,
    /// There is room again, or the relay was closed.
    emptied: Notify,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// The number of the last parcel.
    last: u64,
    /// The batches whose fate is open, by number.
    waiting: BTreeMap<u64, Waiting>,
    /// Their numbers by run, in their order.
    lanes: HashMap<u64, VecDeque<u64>>,
    /// Their bytes.
    bytes: usize,
    /// The calls to make without the lock, in their order.
    calls: VecDeque<Call>,
    /// True while a thread makes them.
    calling: bool,
}

/// A batch that is not acknowledged.
struct Waiting {
    /// The run whose order it keeps.
    run: Option<u64>,
    bytes: usize,
    answers: Vec<Answers>,
    ack: Ack,
    /// Its fate, while that of an earlier batch of the run is open.
    fate: Option<Result<(), StoreError>>,
}

enum Call {
    Send(u64, Box<Parcel>),
    Acknowledge(Ack, Result<(), StoreError>),
}

impl Relay {
    /// Creates a relay that sends its parcels with `carrier`.
    pub fn new(carrier: Arc<dyn Carrier>) -> Arc<Self> {
        Arc::new(Self {
            carrier,
            state: Mutex::default(),
            numbers: Numbers::after(0, PROVISIONAL),
            health: watch::Sender::default(),
            emptied: Notify::new(),
        })
    }

    /// Ends a batch: fills the answers of its changes of state, and calls its ack as soon as those of the
    /// batches before it of the same run are called. Without effect for a batch that has ended.
    pub fn settled(&self, number: u64, delivered: Delivered) {
        let mut state = self.state.lock();
        let waiting = state.waiting.get(&number).filter(|it| it.fate.is_none());
        let Some(Waiting { answers, .. }) = waiting else { return };
        let result = delivered.and_then(|given| give(answers, given));
        state.end(number, result);
        drop(state);
        self.emptied.notify_waiters();
        self.make_calls();
    }

    /// Ends all batches whose fate is open, and every later one, with [`StoreError::Closed`]. Closing
    /// again has no effect.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.bytes = 0;
        state.lanes.clear();
        // A parcel that was not sent yet stays here.
        state.calls.retain(|call| matches!(call, Call::Acknowledge(..)));
        let waiting = mem::take(&mut state.waiting);
        state.calls.extend(waiting.into_values().map(|Waiting { ack, fate, .. }| {
            Call::Acknowledge(ack, fate.unwrap_or(Err(StoreError::Closed)))
        }));
        drop(state);
        self.health.send_replace(Health::Lost(StoreError::Closed));
        self.emptied.notify_waiters();
        self.make_calls();
    }

    /// Returns a receiver for the health.
    pub(super) fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.waiting.len() < WAITING && state.bytes < WAITING_BYTES
    }

    /// Makes the calls that are due, one after the other and without the lock: an ack may submit again.
    /// Returns at once if this is going on already, here or on another thread; those calls are made then,
    /// too. So acks keep the order in which the fates came.
    fn make_calls(&self) {
        if mem::replace(&mut self.state.lock().calling, true) {
            return;
        }
        loop {
            let mut state = self.state.lock();
            let call = state.calls.pop_front();
            state.calling = call.is_some();
            drop(state);
            match call {
                Some(Call::Send(number, parcel)) => self.carrier.send(number, *parcel),
                Some(Call::Acknowledge(ack, result)) => ack(result),
                None => return,
            }
        }
    }
}

impl State {
    /// Notes the fate of a batch, and acknowledges those for which nothing earlier of their run is open.
    fn end(&mut self, number: u64, result: Result<(), StoreError>) {
        let Some(waiting) = self.waiting.get_mut(&number) else { return };
        waiting.fate = Some(result);
        let Some(run) = waiting.run else { return self.acknowledge(number) };
        while let Some(first) = self.lanes.get(&run).and_then(|lane| lane.front().copied()) {
            if self.waiting.get(&first).is_some_and(|it| it.fate.is_none()) {
                return;
            }
            self.acknowledge(first);
            if let Some(lane) = self.lanes.get_mut(&run) {
                lane.pop_front();
            }
        }
        self.lanes.remove(&run);
    }

    /// Acknowledges a batch whose fate is known.
    fn acknowledge(&mut self, number: u64) {
        let Some(Waiting { bytes, ack, fate, .. }) = self.waiting.remove(&number) else { return };
        self.bytes -= bytes;
        let result = fate.unwrap_or(Err(StoreError::Closed));
        self.calls.push_back(Call::Acknowledge(ack, result));
    }
}

/// Gives the answers to the changes of state of a batch.
fn give(answers: &[Answers], given: Vec<Vec<Changed>>) -> Result<(), StoreError> {
    if answers.len() != given.len() {
        return Err(StoreError::Database {
            context: "read the answers to changes of state".to_owned(),
            reason: format!("there are {} for {} changes", given.len(), answers.len()),
        });
    }
    for (to, given) in answers.iter().zip(given) {
        to.give(given);
    }
    Ok(())
}

#[async_trait]
impl Writer for Relay {
    fn submit(&self, batch: Batch) {
        let run = run_of(&batch);
        let Batch { checks, run: write, writes, ack } = batch;
        let mut parcel = Parcel { checks, run: write, writes };
        let (refusal, bytes, answers) = (parcel.refusal(), parcel.bytes(), parcel.take_answers());
        let mut state = self.state.lock();
        if state.closed {
            state.calls.push_back(Call::Acknowledge(ack, Err(StoreError::Closed)));
        } else {
            state.last += 1;
            state.bytes += bytes;
            let number = state.last;
            state.waiting.insert(number, Waiting { run, bytes, answers, ack, fate: None });
            if let Some(run) = run {
                state.lanes.entry(run).or_default().push_back(number);
            }
            match refusal {
                Some(error) => state.end(number, Err(error)),
                None => state.calls.push_back(Call::Send(number, Box::new(parcel))),
            }
        }
        drop(state);
        self.make_calls();
    }

    async fn room(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            // Registered before the check, so that no wake-up is missed.
            emptied.as_mut().enable();
            if self.has_room() {
                return;
            }
            emptied.await;
        }
    }

    fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn health(&self) -> Health {
        self.health.borrow().clone()
    }
}

#[cfg(test)]
mod tests;
