//! The limits of what one run makes the host hold.

use crate::{
    engine::{
        EngineError,
        run::{
            account::{Account, ROW, STEP},
            resident::Run,
        },
        settings::ROOM_MS,
        shard::owner::Shard,
        shared::message::{RunMsg, refuse},
    },
    journal::RunState,
    memory::Level,
};

impl Shard {
    /// Why a run may hold no more, if it may not.
    pub(crate) fn overweight(&self, run: &Run) -> Option<String> {
        let limits = &self.shared.settings.limits;
        // What a run defers may take a little more: it ends the run in order.
        let is_ending = *run.chain.state() != RunState::Active;
        let spare = |most: u64| if is_ending { most.saturating_add(most / 4) } else { most };
        if run.account.over.is_some() && !is_ending {
            return run.account.over.clone();
        }
        let held = run.held();
        let over = |bytes: usize, most: usize| bytes as u64 > spare(most as u64);
        if over(held.total(), run.account.most) || over(held.state, run.account.most_state) {
            return Some(format!(
                "it holds {} bytes in memory, {} are allowed; most of it is {}",
                held.total(),
                run.account.most,
                held.most()
            ));
        }
        if run.chain.history_bytes() > spare(limits.history) {
            return Some(format!(
                "more than {} bytes in one history; use ctx:continue_as",
                limits.history
            ));
        }
        if run.header.bytes > spare(limits.stored) {
            return Some(format!(
                "it stores {} bytes, {} are allowed: its histories, its state and its files",
                run.header.bytes, limits.stored
            ));
        }
        None
    }

    /// Counts a run as what it holds now, and ends it if that is too much.
    pub(crate) fn weigh(&mut self, run: &mut Run) {
        if !run.is_ended()
            && run.chain.paused().is_none()
            && let Some(breach) = self.overweight(run)
        {
            self.break_limit(run, breach);
        }
        let (steps, _) = run.chain.counts();
        let bytes = run.held().total() + run.writing() + steps as usize * STEP + ROW;
        run.account.share.set(bytes);
    }

    /// Lets a run that was read hold what it holds already.
    pub(crate) fn keep_weight(run: &mut Run) {
        let held = run.held().total();
        run.account.keep(held);
    }

    /// Why a run may not hold so much more, if it may not.
    pub(crate) fn too_heavy(run: &Run, more: usize) -> Option<String> {
        let (held, account) = (run.held(), &run.account);
        let is_over = more > 0
            && (held.total().saturating_add(more) > account.most
                || held.state.saturating_add(more) > account.most_state);
        is_over.then(|| {
            format!(
                "it would hold {} bytes in memory, {} are allowed; most of it is {}",
                held.total().saturating_add(more),
                account.most,
                held.most()
            )
        })
    }

    /// Refuses what a caller would make a run hold, where that is too much.
    pub(crate) fn check_weight(run: &Run, what: &str, more: usize) -> Result<(), EngineError> {
        match Self::too_heavy(run, more) {
            Some(why) => Err(run_full(format!("accept {what} of {more} bytes: {why}"))),
            None => Ok(()),
        }
    }

    /// Refuses a file of a worker while too much of the run is on its way, or stored.
    pub(crate) fn check_file(&self, run: &Run, bytes: usize) -> Result<(), EngineError> {
        let limits = &self.shared.settings.limits;
        let writing = run.writing();
        if writing > 0 && writing.saturating_add(bytes) > limits.held {
            let message = format!(
                "accept a file of {bytes} bytes: {writing} bytes of run {} are on their way to the disk",
                run.id
            );
            return Err(run_full(message));
        }
        if run.header.bytes.saturating_add(bytes as u64) > limits.stored {
            let message = format!(
                "accept a file of {bytes} bytes: run {} stores {} bytes, {} are allowed",
                run.id, run.header.bytes, limits.stored
            );
            return Err(run_full(message));
        }
        Ok(())
    }

    /// Whether a run's flow waits until the host has room. One run at a time goes on without.
    pub(crate) fn parks(&mut self, run: &mut Run) -> bool {
        let memory = &self.shared.memory;
        let is_full = memory.level() == Level::Full;
        if !is_full {
            run.account.pass = None;
        } else if run.account.pass.is_none() {
            run.account.pass = memory.pass(run.num);
        }
        let parks = is_full && run.account.pass.is_none();
        if parks != run.account.parked {
            run.account.parked = parks;
            run.restate = true;
        }
        if parks {
            self.wake_later(run.num, ROOM_MS);
            self.shared.make_room();
        }
        parks
    }

    /// Gives the right to go on without room back, once a run has nothing to do.
    pub(crate) fn rest_weight(run: &mut Run) {
        if run.inbox.is_empty() {
            run.account.pass = None;
            run.restate |= std::mem::take(&mut run.account.parked);
        }
    }

    /// Whether a run may be read into memory for a message. What ends work, or lets it rest, always
    /// may: it makes room.
    pub(crate) fn has_room_for(&self, num: u64, message: &RunMsg) -> bool {
        let memory = &self.shared.memory;
        if memory.level() != Level::Full
            || message.is_cancel()
            || matches!(message, RunMsg::Pause { .. } | RunMsg::Quarantine { .. })
        {
            return true;
        }
        self.shared.make_room();
        // One at a time goes on; it takes the right to when its flow is about to.
        memory.pass(num).is_some()
    }

    /// Has a message for a run that cannot be read now come again, or refuses it.
    pub(crate) fn put_off(&mut self, num: u64, message: RunMsg) {
        match message {
            RunMsg::Wake => self.wake_later(num, ROOM_MS),
            _ => self.carry_later(num, ROOM_MS),
        }
        refuse(message, || self.shared.no_room("read a run into memory"));
    }

    /// An account for a run that is to be in memory.
    pub(crate) fn account(&self) -> Account {
        Account::new(self.shared.memory.share(), self.shared.settings.limits.held)
    }
}

/// The refusal for what would make a run hold more than it may.
pub(crate) fn run_full(message: String) -> EngineError {
    EngineError::Busy { code: "run_full", message, retry_after_s: 5 }
}
