//! Background maintenance of sessions: their expiry, and the tasks that wait in the store.

use std::time::Duration;

use crate::{
    engine::{
        EngineError,
        settings::TASKS_READ,
        shared::message::Internal,
        verbs::engine::SessionVerbs,
        verbs::queued::{SHOWN_MS, ticket_of},
    },
    operator::Ticket,
    protocol::SessionId,
    session::LinkEnd,
    store::{Expiring, TaskFilter, TaskPhase},
};

/// The interval at which sessions are ended whose tokens are expired or revoked.
const SWEEP: Duration = Duration::from_secs(5);

/// The number of waiting tasks that are read from the store at once.
const REFILL: usize = 5_000;

impl SessionVerbs<'_> {
    /// Ends sessions that are expired or whose tokens are revoked, and loads tasks that wait in the store.
    pub(crate) fn keep_sessions(self) {
        let (engine, stopping) =
            (self.engine.clone(), self.engine.shared().tasks.stopping().clone());
        self.engine.shared().tasks.spawn(async move {
            loop {
                let sweep = u64::try_from(SWEEP.as_millis()).unwrap_or(u64::MAX);
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = engine.shared().clock.sleep(sweep) => {}
                    () = engine.shared().sessions.hungry() => {
                        if let Err(error) = engine.sessions().refill().await {
                            tracing::warn!(%error, "could not read which tasks wait for a session");
                            engine.shared().sessions.expect_more();
                        }
                    }
                }
                let now_ms = engine.shared().clock.now_ms();
                engine.sessions().show_presence(now_ms);
                for session in engine.tokens().sessions_of_revoked() {
                    engine.sessions().end_swept(&session, LinkEnd::Revoked).await;
                }
                for session in engine.shared().sessions.expired(now_ms) {
                    // The ends before this one took time; it may have been renewed meanwhile.
                    if engine.shared().sessions.expire(&session, now_ms) {
                        engine.sessions().end_swept(&session, LinkEnd::Expired).await;
                        // One that could not be ended may be renewed until the next sweep.
                        engine.shared().sessions.remains(&session);
                    }
                }
            }
        });
    }

    /// Ends a session. One that cannot be ended now is ended by the next sweep.
    async fn end_swept(self, session: &SessionId, why: LinkEnd) {
        if let Err(error) = self.end_session(session, why).await {
            tracing::warn!(%session, %error, "could not end a session");
        }
    }

    /// Writes events about the sessions and workers that came or went since the last look.
    fn show_presence(self, now_ms: u64) {
        let shared = self.engine.shared();
        let workers = shared.hub.book().list(now_ms);
        let sessions = || shared.sessions.all();
        shared.presence.look(sessions, &workers, now_ms, |fact| shared.post(fact));
    }

    /// Asks the runs of tasks that wait for a session, and that no mailbox has, to place them.
    async fn refill(self) -> Result<(), EngineError> {
        for kind in self.engine.shared().registry.session_kinds() {
            self.refill_kind(kind).await?;
        }
        Ok(())
    }

    async fn refill_kind(self, kind: &str) -> Result<(), EngineError> {
        let mut filter =
            TaskFilter { kind: Some(kind.to_owned()), limit: TASKS_READ, ..TaskFilter::default() };
        let mut told = 0;
        loop {
            let page = filter.clone();
            let rows = self.engine.read(move |store| store.tasks(&page)).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            filter.after = Some((last.run, last.step));
            for row in rows.iter().filter(|row| row.phase == TaskPhase::Pending) {
                let Ticket { run, step, attempt } = ticket_of(row);
                if !self.engine.shared().sessions.knows(ticket_of(row)) {
                    self.engine.shared().tell(run, Internal::Redispatch { step, attempt });
                    told += 1;
                }
            }
            if told >= REFILL {
                self.engine.shared().sessions.expect_more();
                return Ok(());
            }
        }
    }

    /// Deletes sessions that were closed long ago.
    ///
    /// # Errors
    /// Fails when the store cannot be written.
    pub async fn forget_sessions(self) -> Result<(), EngineError> {
        let before_ms = self.engine.shared().clock.now_ms().saturating_sub(SHOWN_MS);
        self.engine.safe_mode().expire(Expiring::Sessions, before_ms).await
    }
}
