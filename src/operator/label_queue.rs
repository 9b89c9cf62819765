//! Tickets that wait for the same sort of worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::protocol::Ticket;

/// Tickets that require the same labels. Runs take turns, and within a run the earlier step comes
/// first.
#[derive(Debug, Default)]
pub(super) struct LabelQueue {
    tickets: BTreeMap<u64, BTreeSet<Ticket>>,
    /// The runs that have tickets, each once, in the order of their turns, and since when.
    turns: VecDeque<(u64, u64)>,
}

impl LabelQueue {
    /// Returns the number of tickets.
    pub(super) fn len(&self) -> usize {
        self.tickets.values().map(BTreeSet::len).sum()
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns true if a ticket is in it.
    pub(super) fn has(&self, ticket: Ticket) -> bool {
        self.tickets.get(&ticket.run).is_some_and(|run| run.contains(&ticket))
    }

    /// Returns true if the next run has waited for at least so long.
    pub(super) fn waits_for(&self, ms: u64, now_ms: u64) -> bool {
        self.turns.front().is_some_and(|(_, since_ms)| now_ms.saturating_sub(*since_ms) >= ms)
    }

    /// Adds a ticket.
    pub(super) fn put(&mut self, ticket: Ticket, now_ms: u64) {
        let run = self.tickets.entry(ticket.run).or_default();
        if run.is_empty() {
            self.turns.push_back((ticket.run, now_ms));
        }
        run.insert(ticket);
    }

    /// Takes the first ticket of the run whose turn it is.
    pub(super) fn take(&mut self, now_ms: u64) -> Option<Ticket> {
        let (run, _) = self.turns.pop_front()?;
        let tickets = self.tickets.get_mut(&run)?;
        let taken = tickets.pop_first();
        if tickets.is_empty() {
            self.tickets.remove(&run);
        } else {
            self.turns.push_back((run, now_ms));
        }
        taken
    }

    /// Removes a ticket; returns true if it was there.
    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        let Some(run) = self.tickets.get_mut(&ticket.run) else { return false };
        let removed = run.remove(&ticket);
        if run.is_empty() {
            self.tickets.remove(&ticket.run);
            self.turns.retain(|(run, _)| *run != ticket.run);
        }
        removed
    }
}
