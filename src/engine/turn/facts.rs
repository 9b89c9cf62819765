//! One transition of a run: what it works on, and how a fact is added.
//!
//! Every function of this folder takes a [`Turn`]. Nothing of a transition is visible outside before
//! its batch is durable.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{run::resident::Run, shared::shards::Shared, turn::counting},
    journal::{Additions, Entry, Fact},
    lua::Vms,
};

/// A run in the middle of one transition, with what the transition may use.
pub(crate) struct Turn<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) shared: &'a Arc<Shared>,
    /// The time on the wall clock, and on the steady one, in milliseconds.
    pub(crate) now_ms: u64,
    pub(crate) steady_ms: u64,
    pub(crate) vms: &'a mut Vms,
    /// The other runs that the shard has in memory.
    pub(crate) others: &'a HashMap<u64, Box<Run>>,
}

/// Adds a fact to a run's history.
pub(crate) fn append(turn: &mut Turn<'_>, fact: Fact) {
    append_with(turn, fact, Additions::default());
}

/// The same, with what is said about the fact besides.
pub(crate) fn append_with(turn: &mut Turn<'_>, fact: Fact, mut additions: Additions) {
    let ends = fact.ended_attempt();
    if let Some((_, mark)) = turn.run.accepted.take_if(|(attempt, _)| ends == Some(*attempt)) {
        additions.put_report(&mark);
    }
    let at_ms = turn.now_ms.max(turn.run.chain.last_ms());
    let entry = Entry { additions, ..Entry::new(turn.run.chain.seq() + 1, at_ms, fact) };
    match turn.run.chain.apply(&entry) {
        Ok(()) => {
            let counted = counting::of_fact(turn.run, &entry.fact, at_ms);
            turn.run.pending.after.counts.extend(counted);
            turn.run.pending.entry_bytes += entry.fact.size_hint();
            turn.run.pending.entries.push(entry);
        }
        Err(error) => {
            debug_assert!(false, "{error}");
            tracing::error!(run = %turn.run.id, %error, "a fact did not follow; the run is read again");
            turn.run.reload = true;
        }
    }
}

/// The time that the next fact of a run gets.
pub(crate) fn time_of(turn: &Turn<'_>) -> u64 {
    turn.now_ms.max(turn.run.chain.last_ms())
}
