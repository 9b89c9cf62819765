//! The end of attempts in this process when the database is away for so long that nobody knows whether
//! they are still wanted.

use crate::engine::{shared::message::Msg, verbs::engine::UpkeepVerbs};

/// The interval of looks at the database.
const LOOK_MS: u64 = 5_000;
/// The time for which attempts in this process go on without the database.
const HOLD_MS: u64 = 5 * 60_000;

/// An outage of the database, from its first look to its last.
#[derive(Debug, Default)]
struct Outage {
    since_ms: Option<u64>,
    is_over_hold: bool,
}

impl Outage {
    /// Takes a look into account. Returns true once an outage, when it has lasted for too long.
    fn look(&mut self, is_away: bool, steady_ms: u64) -> bool {
        if !is_away {
            *self = Self::default();
            return false;
        }
        let since_ms = *self.since_ms.get_or_insert(steady_ms);
        let was_over_hold = self.is_over_hold;
        self.is_over_hold = steady_ms.saturating_sub(since_ms) >= HOLD_MS;
        self.is_over_hold && !was_over_hold
    }
}

impl UpkeepVerbs<'_> {
    /// Interrupts the attempts in this process five minutes after the database went away. Their next
    /// attempts begin when it is back.
    pub(crate) fn watch_outages(self) {
        let engine = self.engine.clone();
        let stopping = engine.shared().tasks.stopping().clone();
        self.engine.shared().tasks.spawn(async move {
            let mut outage = Outage::default();
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = engine.shared().clock.sleep(LOOK_MS) => {}
                }
                let now_ms = engine.shared().clock.steady_ms();
                if outage.look(engine.is_storage_away(), now_ms) {
                    tracing::warn!(
                        "the database has been away for {} minutes: attempts in this process are \
                         interrupted, and tried again when it is back",
                        HOLD_MS / 60_000
                    );
                    engine.upkeep().interrupt_attempts();
                }
            }
        });
    }

    /// Interrupts every attempt in this process.
    pub(crate) fn interrupt_attempts(self) {
        for shard in &self.engine.shared().shards {
            shard.send(Msg::Interrupt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_held_for_five_minutes_of_one_outage_and_interrupted_once() {
        let mut outage = Outage::default();
        assert!(!outage.look(false, 1_000));
        assert!(!outage.look(true, 5_000));
        assert!(!outage.look(true, 5_000 + HOLD_MS - 1));
        assert!(outage.look(true, 5_000 + HOLD_MS));
        assert!(!outage.look(true, 5_000 + 2 * HOLD_MS), "only once");
        // The next outage has its own five minutes.
        assert!(!outage.look(false, 5_000 + 3 * HOLD_MS));
        assert!(!outage.look(true, 5_000 + 4 * HOLD_MS));
        assert!(outage.look(true, 5_000 + 5 * HOLD_MS));
    }
}
