//! Decides if the host has memory for a run, and which ones go when it has not.

use crate::{
    engine::{
        run::account::Account,
        settings::ROOM_MS,
        shard::owner::Shard,
        shared::message::{Internal, RunMsg},
        turn::{settle, waiting},
    },
    memory::Level,
};

impl Shard {
    /// Returns true if a run may be read into memory for a message. What ends work, or lets it
    /// rest, always may: it makes room.
    pub(crate) fn has_room_for(&self, num: u64, message: &RunMsg) -> bool {
        let memory = &self.shared.memory;
        if memory.level() != Level::Full || message.is_cancel() || message.is_pause() {
            return true;
        }
        self.shared.make_room();
        // One at a time goes on; it takes the right to when its flow is about to.
        memory.pass(num).is_some()
    }

    /// Has a message for a run that cannot be read now come again, or refuses it.
    pub(crate) fn put_off(&mut self, num: u64, message: RunMsg) {
        if self.is_helper() {
            // With the message, the run goes home.
            return;
        }
        match message {
            RunMsg::Internal(Internal::Wake) => self.wake_later(num, ROOM_MS),
            _ => self.carry_later(num, ROOM_MS),
        }
        message.refuse(self.shared.no_room("read a run into memory"));
    }

    /// An account for a run that is to be in memory.
    pub(crate) fn account(&self) -> Account {
        Account::new(self.shared.memory.share(), self.shared.settings.limits.held)
    }

    /// Drops idle runs, least recently used first, while there are too many.
    pub(crate) fn evict(&mut self) {
        let limit = self.shared.settings.live_runs;
        let mut looks = self.recent.len();
        let mut dropped = 0;
        let presses = |dropped: usize, level: Level| match level {
            Level::Roomy => false,
            // What its flow had is given back later: not everything goes at once.
            Level::Tight => dropped < 8,
            Level::Full => true,
        };
        while looks > 0 && (self.runs.len() > limit || presses(dropped, self.shared.memory.level()))
        {
            looks -= 1;
            let Some(num) = self.recent.pop_front() else { break };
            if let Some(run) = self.runs.get_mut(&num) {
                run.subscribers.retain(|subscriber| !subscriber.is_closed());
            }
            match self.runs.get(&num) {
                Some(run) if run.is_idle() && !run.queued => {
                    let next = waiting::first_alarm(run.alarm, &self.shared.clock);
                    // What was asked for looks at what is stored, which may be from before now.
                    let known_ms = self.horizon_ms.max(self.poll.map_or(0, |poll| poll.until_ms));
                    let later = next.is_some_and(|due| due > known_ms);
                    let mut run = self.runs.remove(&num);
                    drop(self.held.remove(&num));
                    if let Some(run) = &mut run {
                        settle::keep_held(run);
                    }
                    if let Some(run) = run
                        && later
                        && self.recovers
                        && run.header.wake_at_ms == next
                    {
                        // It is read from the store when its time is near.
                        self.silence(&run);
                    }
                    dropped += 1;
                }
                Some(_) => drop(self.recent.insert(num)),
                None => {}
            }
        }
        if self.shared.memory.level() != Level::Roomy {
            self.vms.relieve();
        }
        if self.recent.len() > 2 * self.runs.len() + 1_024 {
            self.recent.retain(|num| self.runs.contains_key(num));
        }
    }
}
