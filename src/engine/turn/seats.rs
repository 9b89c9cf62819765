//! Which session stands behind an operator of a run.

use crate::{
    engine::{
        run::{branches, resident::Run},
        turn::lineage::session_in,
    },
    protocol::SessionId,
    session::Seat,
};

/// The session that takes every task of a run.
pub(crate) fn delegate_of(run: &Run) -> Option<SessionId> {
    branches::delegate(run).map(SessionId::from)
}

/// Returns the preferred holder of an operator's tasks in a run.
pub(crate) fn seat(run: &Run, operator: &str) -> Seat {
    let holder = run.chain.seats().get(operator);
    let starter = run.chain.started().and_then(|(started, _)| session_in(&started.principal));
    Seat {
        delegate: delegate_of(run),
        holder: holder.map(|held| SessionId::from(held.session.as_str())),
        starter: starter.map(SessionId::from),
    }
}
