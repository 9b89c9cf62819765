//! Which session stands behind an operator of a run.

use std::sync::Arc;

use crate::{
    engine::{run::resident::Run, turn::waiting::seat},
    protocol::SessionId,
    session::{EVERY, Seat},
};

/// The session that takes every task of a run.
pub(crate) fn delegate_of(run: &Run) -> Option<SessionId> {
    let (started, _) = run.chain.started()?;
    let first = started.delegate.as_deref()?;
    let moved = run.chain.seats().get(EVERY).map(|held| held.session.as_str());
    Some(SessionId::from(moved.unwrap_or(first)))
}

/// Who should have a task of an operator.
pub(crate) fn seat_of(run: &Run, operator: &Arc<str>) -> Seat {
    seat(run, operator)
}
