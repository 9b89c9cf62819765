//! Which session stands behind an operator of a run.

use std::sync::Arc;

use crate::{
    engine::{run::resident::Run, turn::waiting::seat},
    protocol::SessionId,
    session::Seat,
};

/// The session that takes every task of a run.
pub(crate) fn delegate_of(run: &Run) -> Option<SessionId> {
    let (started, _) = run.chain.started()?;
    started.delegate.as_deref().map(SessionId::from)
}

/// The preferred holder of a task of an operator.
pub(crate) fn seat_of(run: &Run, operator: &Arc<str>) -> Seat {
    seat(run, operator)
}
