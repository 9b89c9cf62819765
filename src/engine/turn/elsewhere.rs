//! Changes of scopes that somebody else keeps: into the outbox, with the commit that accepts them.

use crate::{
    engine::{run::perform::Perform, turn::facts::Turn},
    protocol::ChangeKey,
    store::{ForeignChange, OutboxRow, StateChange, Write},
};

/// Sends a change to the store of its scope, once the commit is durable. `n` tells the changes of
/// a step apart.
pub(crate) fn send(turn: &mut Turn<'_>, step: u32, n: u64, change: StateChange) {
    let scope = change.scope.clone();
    let key = ChangeKey::new(turn.run.id.to_string(), step, n);
    let row = OutboxRow {
        run: turn.run.num,
        step: turn.shared.lanes.number(),
        to: 0,
        errand: ForeignChange { key, change }.errand(),
    };
    turn.run.pending.writes.push(Write::PutOutbox(row));
    turn.run.pending.after.performs.push(Perform::Change { scope });
}
