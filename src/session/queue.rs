//! The attempts that wait in memory, each in the queue of the resource that it needs.
//!
//! Their number and their size are limited. The store has every attempt, so one that finds no room
//! here is read from there later.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Spawn, place::Key};

/// The maximum number of attempts in all queues.
const MOST_WAITING: usize = 10_000;
/// The maximum size of their parameters in bytes.
const MOST_BYTES: usize = 128 << 20;

/// All queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// The attempts of each queue by the number of their arrival. No queue is empty.
    queues: HashMap<Key, BTreeMap<u64, Spawn>>,
    arrivals: u64,
    len: usize,
    bytes: usize,
    /// The queues of attempts that found no room.
    left_out: HashSet<Key>,
}

impl Queues {
    /// Adds an attempt at the end of a queue, and returns its number there. Returns `None` if there
    /// is no room.
    pub(super) fn push(&mut self, key: &Key, spawn: Spawn) -> Option<u64> {
        let size = spawn.size();
        if self.len >= MOST_WAITING || self.bytes + size > MOST_BYTES {
            self.left_out.insert(key.clone());
            return None;
        }
        self.arrivals += 1;
        self.len += 1;
        self.bytes += size;
        self.queues.entry(key.clone()).or_default().insert(self.arrivals, spawn);
        Some(self.arrivals)
    }

    /// Removes and returns the first attempt of a queue.
    pub(super) fn pop(&mut self, key: &Key) -> Option<Spawn> {
        let number = *self.queues.get(key)?.first_key_value()?.0;
        self.remove(key, number)
    }

    /// Removes one attempt.
    pub(super) fn remove(&mut self, key: &Key, number: u64) -> Option<Spawn> {
        let queue = self.queues.get_mut(key)?;
        let spawn = queue.remove(&number)?;
        if queue.is_empty() {
            self.queues.remove(key);
        }
        self.len -= 1;
        self.bytes -= spawn.size();
        Some(spawn)
    }

    /// Removes a queue, and returns its attempts in order.
    pub(super) fn take(&mut self, key: &Key) -> Vec<Spawn> {
        let all: Vec<Spawn> =
            self.queues.remove(key).into_iter().flatten().map(|it| it.1).collect();
        self.len -= all.len();
        self.bytes -= all.iter().map(Spawn::size).sum::<usize>();
        all
    }

    /// Returns true if `is_such` holds for an attempt that waits in a queue.
    pub(super) fn any(&self, key: &Key, is_such: impl Fn(&Spawn) -> bool) -> bool {
        self.queues.get(key).is_some_and(|queue| queue.values().any(is_such))
    }

    /// Returns true once if an attempt of this queue found no room.
    pub(super) fn was_left_out(&mut self, key: &Key) -> bool {
        self.left_out.remove(key)
    }

    /// Returns true if at least half of the room is free.
    pub(super) fn is_half_free(&self) -> bool {
        self.len < MOST_WAITING / 2 && self.bytes < MOST_BYTES / 2
    }

    #[cfg(test)]
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.queues.values().map(BTreeMap::len).sum(), self.len, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        protocol::{TaskId, Ticket},
        session::Seat,
    };

    fn spawn(step: u32, parameters: &Arc<str>) -> Spawn {
        Spawn {
            ticket: Ticket { run: 1, step, attempt: 1 },
            task: TaskId::new(1, step, 5),
            epoch: 1,
            nonce: 9,
            operator: "main-ai".into(),
            seat: Seat::default(),
            timeout_ms: None,
            thin: Arc::clone(parameters),
            full: None,
            direct: false,
        }
    }

    #[test]
    fn attempts_that_wait_have_a_size_together_and_who_finds_no_room_is_left_out_once() {
        let (mut queues, key) = (Queues::default(), Key::Operator("main-ai".into()));
        let large: Arc<str> = "x".repeat(MOST_BYTES / 4).into();
        for step in 1..=3 {
            assert!(queues.push(&key, spawn(step, &large)).is_some(), "{step}");
        }
        assert!(!queues.was_left_out(&key));
        assert_eq!(queues.push(&key, spawn(4, &large)), None, "what each needs besides counts");
        assert!(queues.push(&key, spawn(5, &"small".into())).is_some());
        assert!(queues.was_left_out(&key) && !queues.was_left_out(&key));
        assert!(!queues.is_half_free());
        queues.pop(&key);
        queues.pop(&key);
        assert!(queues.is_half_free());
        assert!(queues.push(&key, spawn(4, &large)).is_some());
        queues.take(&key);
        assert_eq!(queues.sizes(), (0, 0, 0));
    }
}
