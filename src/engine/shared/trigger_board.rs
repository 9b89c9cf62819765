//! The last start of each trigger, in memory.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::protocol::RunId;

/// The interval at which a start is stored, in milliseconds: signals and changes of files may come
/// often. Those of a schedule are stored each time, with its due time.
const STORED_EVERY_MS: u64 = 60_000;

/// A run that a trigger started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStart {
    /// The time, in Unix milliseconds.
    pub at_ms: u64,
    /// The run.
    pub run: RunId,
}

/// The last starts, by the id of the trigger.
#[derive(Default)]
pub(crate) struct TriggerBoard {
    starts: Mutex<HashMap<String, (LastStart, u64)>>,
}

impl TriggerBoard {
    /// Returns the last start since the host began.
    pub(crate) fn last(&self, trigger: &str) -> Option<LastStart> {
        self.starts.lock().get(trigger).map(|(last, _)| *last)
    }

    /// Records a start; returns true if it is to be stored now.
    pub(crate) fn started(&self, trigger: &str, start: LastStart) -> bool {
        let mut starts = self.starts.lock();
        let stored_ms = starts.get(trigger).map(|(_, stored_ms)| *stored_ms);
        let due = stored_ms.is_none_or(|at| start.at_ms.saturating_sub(at) >= STORED_EVERY_MS);
        let stored_ms = if due { start.at_ms } else { stored_ms.unwrap_or(start.at_ms) };
        starts.insert(trigger.to_owned(), (start, stored_ms));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_is_known_at_once_and_stored_once_a_minute() {
        let board = TriggerBoard::default();
        let start = |at_ms| LastStart { at_ms, run: RunId::new(at_ms, at_ms) };
        let stored: Vec<_> = [1_000, 2_000, 60_999, 61_000, 61_001]
            .into_iter()
            .map(|at_ms| board.started("trg_a", start(at_ms)))
            .collect();
        assert_eq!(stored, [true, false, false, true, false]);
        assert_eq!(board.last("trg_a"), Some(start(61_001)));
        assert_eq!(board.last("trg_b"), None);
    }
}
