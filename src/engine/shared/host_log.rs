//! The events of the host beside its runs: blueprints, sessions, workers. Stored for a week, so that a
//! reader of the feed that comes back misses nothing.
//!
//! Numbers come from the time, so that they grow over restarts also when all rows have expired. A row
//! is numbered and submitted under one lock, and batches without a run keep their order: a reader that
//! has seen a row has seen all before it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    engine::shared::in_flight::InFlight,
    store::{Batch, Store, StoreError, Write},
};

/// The place of the rows among the values that are kept with an expiry. No layer of middleware has a
/// name with a space.
const KEPT: &str = "host event";
/// The time for which a row is kept, in milliseconds.
const KEPT_MS: u64 = 7 * 86_400_000;
/// The bits of a number below its time in milliseconds.
const BITS: u32 = 16;
/// The number of events about presence that may come at once.
const BURST: u64 = 2_000;
/// The time after which one more may come, in milliseconds.
const REFILL_MS: u64 = 2_000;

/// An event of the host that belongs to no run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostFact {
    /// `blueprint.published`, `session.opened`, …
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The time, in Unix milliseconds.
    pub(crate) at_ms: u64,
    /// The blueprint that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blueprint: Option<String>,
    /// The details.
    pub(crate) data: Value,
}

impl HostFact {
    /// Creates an event.
    pub(crate) fn new(kind: &str, at_ms: u64, data: Value) -> Self {
        Self { kind: kind.to_owned(), at_ms, blueprint: None, data }
    }

    /// Names the blueprint that it is about.
    #[must_use]
    pub(crate) fn of_blueprint(mut self, name: &str) -> Self {
        self.blueprint = Some(name.to_owned());
        self
    }
}

/// The events of the host that belong to no run.
pub(crate) struct HostLog {
    /// The number of the last row that was submitted.
    last: Mutex<u64>,
    /// The number up to which every row is durable, or never will be.
    durable: Arc<AtomicU64>,
    /// The number of events about presence that may still come, and the time that it counts from.
    room: Mutex<(u64, u64)>,
}

impl HostLog {
    /// Opens the log at a time.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) fn open(store: &dyn Store, now_ms: u64) -> Result<Self, StoreError> {
        let mut last = now_ms << BITS;
        // The clock may have been set back.
        loop {
            let rows = store.kept_by(KEPT, &key(last), 1_000)?;
            let Some(row) = rows.last() else { break };
            last = number(&row.key).unwrap_or(last).max(last + 1);
        }
        let durable = Arc::new(AtomicU64::new(last));
        Ok(Self { last: Mutex::new(last), durable, room: Mutex::new((BURST, now_ms)) })
    }

    /// Submits a batch with events, which are durable with it. The batch belongs to no run.
    pub(crate) fn submit(
        &self,
        store: &dyn Store,
        in_flight: &Arc<InFlight>,
        mut batch: Batch,
        facts: Vec<HostFact>,
    ) {
        if facts.is_empty() {
            store.submit(batch);
            return;
        }
        // Readers are woken when it is dropped.
        let flight = in_flight.begin(store);
        let mut last = self.last.lock();
        for fact in facts {
            *last = (*last + 1).max(fact.at_ms << BITS);
            batch.writes.push(Write::PutKept {
                layer: KEPT.to_owned(),
                key: key(*last),
                value: serde_json::to_string(&fact).expect("an event is plain data"),
                expires_ms: Some(fact.at_ms + KEPT_MS),
            });
        }
        let (upto, durable, ack) = (*last, Arc::clone(&self.durable), batch.ack);
        batch.ack = Box::new(move |result| {
            durable.fetch_max(upto, Ordering::Release);
            drop(flight);
            ack(result);
        });
        store.submit(batch);
    }

    /// Submits an event about who is there. Of very many, some are left out.
    pub(crate) fn post(&self, store: &dyn Store, in_flight: &Arc<InFlight>, fact: HostFact) {
        {
            let mut room = self.room.lock();
            let more = fact.at_ms.saturating_sub(room.1) / REFILL_MS;
            *room = ((room.0 + more).min(BURST), room.1 + more * REFILL_MS);
            let Some(left) = room.0.checked_sub(1) else {
                tracing::debug!(kind = fact.kind, "too many events of sessions and workers");
                return;
            };
            room.0 = left;
        }
        let ack = Box::new(|result| {
            if let Err(error) = result {
                tracing::warn!(%error, "an event of the host was not stored");
            }
        });
        let batch = Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack };
        self.submit(store, in_flight, batch, vec![fact]);
    }

    /// Returns the number up to which every row is durable, or never will be.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns a number before every row at a time.
    pub(crate) fn before(at_ms: u64) -> u64 {
        (at_ms << BITS).saturating_sub(1)
    }

    /// Returns the rows after a number, in order, with their numbers; and true if there may be more.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) fn after(
        store: &dyn Store,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<(u64, HostFact)>, bool), StoreError> {
        let rows = store.kept_by(KEPT, &key(after), limit)?;
        let more = rows.len() >= limit;
        let read = |row: crate::store::KeptRow| {
            Some((number(&row.key)?, serde_json::from_str(&row.value).ok()?))
        };
        Ok((rows.into_iter().filter_map(read).collect(), more))
    }
}

/// Returns the key of a row; keys sort as numbers do.
fn key(number: u64) -> String {
    format!("{number:016x}")
}

fn number(key: &str) -> Option<u64> {
    u64::from_str_radix(key, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Memory, Reader as _};

    fn fact(kind: &str, at_ms: u64) -> HostFact {
        HostFact::new(kind, at_ms, json!({}))
    }

    fn kinds(store: &Memory, after: u64) -> Vec<String> {
        let (rows, _) = HostLog::after(store, after, 10).unwrap();
        rows.into_iter().map(|(_, fact)| fact.kind).collect()
    }

    #[test]
    fn rows_are_numbered_on_after_a_restart_also_with_a_clock_that_was_set_back() {
        let (store, flights) = (Memory::new(), Arc::default());
        let log = HostLog::open(&store, 1_000).unwrap();
        let start = log.durable();
        log.post(&store, &flights, fact("a", 1_000));
        log.post(&store, &flights, fact("b", 900));
        assert_eq!(kinds(&store, start), ["a", "b"]);
        let seen = log.durable();
        assert!(kinds(&store, seen).is_empty());
        let log = HostLog::open(&store, 500).unwrap();
        log.post(&store, &flights, fact("c", 500));
        assert_eq!(kinds(&store, seen), ["c"]);
        assert_eq!(kinds(&store, HostLog::before(1_000)), ["a", "b", "c"]);
        assert_eq!(store.kept_by("host event", "", 10).unwrap().len(), 3);
    }

    #[test]
    fn of_very_many_events_some_are_left_out_until_there_is_room() {
        let (store, flights) = (Memory::new(), Arc::default());
        let log = HostLog::open(&store, 0).unwrap();
        for _ in 0..BURST + 10 {
            log.post(&store, &flights, fact("a", 1));
        }
        let count = || store.kept_by("host event", "", 5_000).unwrap().len();
        assert_eq!(count(), 2_000);
        log.post(&store, &flights, fact("a", REFILL_MS));
        assert_eq!(count(), 2_001);
    }
}
