//! The standbys of the server: whether a failover to one may lose what was acknowledged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    failed::Failed,
    repeated::Repeated,
    session::Session,
    value::{get, uint},
    wire::Wire,
};
use crate::store::{Durability, StoreError};

/// The interval of looks at the standbys.
const LOOK: Duration = Duration::from_secs(10);

/// The standbys that follow a server. Backups, archives of the log and subscribers are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standbys {
    /// The number of those that commits wait for.
    pub synchronous: u64,
    /// The number of all.
    pub all: u64,
    /// True if commits wait for standbys at all: `synchronous_standby_names` is set.
    pub waits: bool,
}

impl Standbys {
    /// Asks the server.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub fn of(session: &Session) -> Result<Self, Failed> {
        let row = session.one(
            "SELECT count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), count(*),
                    current_setting('synchronous_standby_names') <> ''
             FROM pg_stat_replication r
             WHERE coalesce(state, '') <> 'backup'
               AND coalesce(application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal')
               AND NOT EXISTS (SELECT FROM pg_replication_slots s
                               WHERE s.active_pid = r.pid AND s.slot_type = 'logical')",
            &[],
        )?;
        let Some(row) = row else { return Err(Failed::Silent) };
        Ok(Self { synchronous: uint(&row, 0)?, all: uint(&row, 1)?, waits: get(&row, 2)? })
    }

    /// Returns what a failover to one of them may lose.
    pub fn durability(self) -> Durability {
        match self.all > 0 && !self.waits {
            true => Durability::Asynchronous,
            false => Durability::Synchronous,
        }
    }

    /// Returns the reason why they cannot be relied on, with a remedy.
    pub fn refusal(self, asked: Durability) -> Option<String> {
        if asked == Durability::Asynchronous || self.durability() == Durability::Synchronous {
            return None;
        }
        Some(format!(
            "{} standbys follow it, all asynchronous: a failover would lose the last commits; set \
             synchronous_standby_names on the server, or accept that loss with durability = \
             \"asynchronous\" (--durability asynchronous)",
            self.all
        ))
    }
}

/// A thread that looks at the standbys while the store is open, and logs when one is asynchronous.
pub struct StandbyWatch {
    asked: Durability,
    /// True if the last look found an asynchronous standby that nobody asked for.
    is_at_risk: Arc<AtomicBool>,
    _thread: Repeated,
}

impl StandbyWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub fn start(wire: Wire, asked: Durability) -> Result<Self, StoreError> {
        let is_at_risk = Arc::<AtomicBool>::default();
        let found = Arc::clone(&is_at_risk);
        let thread = Repeated::start("store-standbys", move |rounds| {
            let mut session = None;
            while rounds.go_on() {
                match standbys(&wire, &mut session) {
                    Ok(seen) => report(seen.refusal(asked), &found),
                    // An outage is what the renewal of the lease reports.
                    Err(_) => session = None,
                }
                rounds.pause(LOOK);
            }
        })?;
        Ok(Self { asked, is_at_risk, _thread: thread })
    }

    /// Returns what a failover may lose, as was asked for and as was last seen.
    pub fn durability(&self) -> Durability {
        match self.asked == Durability::Asynchronous || self.is_at_risk.load(Ordering::Acquire) {
            true => Durability::Asynchronous,
            false => Durability::Synchronous,
        }
    }
}

/// Logs the reason why commits are at risk, once.
fn report(reason: Option<String>, is_at_risk: &AtomicBool) {
    let was_at_risk = is_at_risk.swap(reason.is_some(), Ordering::AcqRel);
    if let Some(reason) = reason.filter(|_| !was_at_risk) {
        tracing::error!(reason, "the database has become less durable than configured");
    }
}

fn standbys(wire: &Wire, session: &mut Option<Session>) -> Result<Standbys, Failed> {
    let session = match session {
        Some(session) => session,
        none => none.insert(wire.renewer("moonswarm/standbys")?),
    };
    Standbys::of(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_standbys_are_refused_unless_they_are_asked_for() {
        let standbys = |synchronous, all, waits| Standbys { synchronous, all, waits };
        let refusal = |it: Standbys| it.refusal(Durability::Synchronous);
        assert_eq!(refusal(standbys(0, 0, false)), None);
        assert_eq!(refusal(standbys(1, 2, true)), None);
        assert_eq!(refusal(standbys(0, 1, true)), None, "commits wait until one is synchronous");
        let told = refusal(standbys(0, 2, false)).unwrap();
        assert!(
            told.contains("2 standbys") && told.contains("--durability asynchronous"),
            "{told}"
        );
        assert_eq!(standbys(0, 2, false).refusal(Durability::Asynchronous), None);
    }
}
