//! Loads runs: read by a blocking thread, then rebuilt here by replay.
//!
//! | a message for a run that is not in memory | then |
//! |---|---|
//! | the first | it waits in `held`, and the run is requested |
//! | further ones | they wait behind it |
//! | the run was read | it is rebuilt for the first message, and all are handled in order |
//! | the read failed, or there is no such run | all are refused |
//!
//! A replay that differs, or a limit that is hit while replaying, lets the run rest with the reason,
//! and loses nothing.

use crate::protocol::Code;
use std::{
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    engine::{
        EngineError,
        inbox::{receive, signals::carry_again},
        run::{
            account::OwnState,
            loaded::{Again, Loaded, Loading, Rows},
            loan::Lent,
            resident::Run,
            values::grant_of,
        },
        settings::STORAGE_RETRY_MS,
        shard::{
            owner::Shard,
            read::{Reason, read},
        },
        shared::message::{Internal, Msg, RunMsg},
        turn::{drive, facts::Turn, replay, retell::ReplayStop, signals, take_up, weight},
    },
    fault,
    journal::Chain,
    lua::Program,
    memory::Level,
    store::{Header, RunStatus, StoreError},
};

/// Concurrent reads of one shard.
const READS: usize = 4;

/// Requests that may wait for one run to be loaded.
pub(crate) const HELD: usize = 4_096;

impl Shard {
    /// Holds a message if its run is being loaded, or rests after a write that failed; returns it
    /// otherwise.
    pub(crate) fn hold(&mut self, num: u64, message: RunMsg) -> Option<RunMsg> {
        let rests = self.resting.get(&num).is_some_and(|until| *until > self.steady_ms);
        if !rests && self.resting.remove(&num).is_some() {
            self.tell_held(num);
        }
        if !rests && !self.loading.contains_key(&num) {
            return Some(message);
        }
        let held = self.held.entry(num).or_default();
        if held.len() < HELD || message.is_told() {
            held.push(message);
        } else {
            message.refuse(EngineError::Busy {
                code: Code::Overloaded,
                message: format!("{HELD} requests wait for this run to be read"),
                retry_after_s: 1,
            });
        }
        None
    }

    /// Requests a run for a message.
    pub(crate) fn ask_for(&mut self, num: u64, message: RunMsg, again: Option<Again>) {
        self.held.entry(num).or_default().insert(0, message);
        self.lives += 1;
        self.loading.insert(num, Loading { ticket: self.lives, again });
        self.unread.push_back(num);
        self.read_next();
    }

    /// Starts the next reads, within the limit.
    fn read_next(&mut self) {
        loop {
            // A run is counted once it is in memory, and may be large.
            let is_roomy = self.shared.memory.level() == Level::Roomy;
            if self.reading >= if is_roomy { READS } else { 1 } {
                return;
            }
            let Some(num) = self.unread.pop_front() else { return };
            let Some(loading) = self.loading.get(&num) else { continue };
            let Some(first) = self.held.get(&num).and_then(|held| held.first()) else { continue };
            if loading.again.is_none() && !self.has_room_for(num, first) {
                self.loading.remove(&num);
                for message in self.held.remove(&num).into_iter().flatten() {
                    self.put_off(num, message);
                }
                continue;
            }
            let (ticket, reason) = (loading.ticket, Reason::of(first));
            self.reading += 1;
            let shared = Arc::clone(&self.shared);
            self.shared.tasks.spawn_blocking(move || {
                let result = catch_unwind(AssertUnwindSafe(|| read(&shared, num, reason)));
                let result = result.unwrap_or_else(|_| {
                    let (context, reason) = (format!("read run {num}"), "a panic".to_owned());
                    Err(StoreError::Database { context, reason })
                });
                shared.send(num, Msg::Loaded { run: num, ticket, result: Box::new(result) });
            });
        }
    }

    /// Handles the result of a read.
    pub(crate) fn loaded(
        &mut self,
        num: u64,
        ticket: u64,
        result: Result<Option<Loaded>, StoreError>,
    ) {
        self.reading = self.reading.saturating_sub(1);
        if let Some(loading) = self.loading.remove(&num) {
            if loading.ticket == ticket {
                let messages = self.held.remove(&num).unwrap_or_default();
                self.go_on_with(num, messages, loading.again, result);
            } else {
                self.loading.insert(num, loading);
            }
        }
        self.read_next();
    }

    fn go_on_with(
        &mut self,
        num: u64,
        messages: Vec<RunMsg>,
        again: Option<Again>,
        result: Result<Option<Loaded>, StoreError>,
    ) {
        match result {
            // With the messages, the run goes home.
            Err(error) if self.is_helper() => {
                tracing::warn!(run = num, %error, "a run of another node could not be read");
            }
            Err(error) => {
                tracing::error!(run = num, %error, "could not read a run");
                let (told, asked): (Vec<_>, Vec<_>) =
                    messages.into_iter().partition(RunMsg::is_told);
                if matches!(error, StoreError::Damaged { .. } | StoreError::TooLarge { .. }) {
                    self.quarantine_damaged(num, &error);
                    // Whoever lets it go on lets it hear what is on its way.
                    self.unheard.insert(num);
                } else if again.is_some() || !told.is_empty() || self.unheard.contains(&num) {
                    // What nobody else repeats waits for the next try.
                    let kept = told.into_iter().filter(|message| !message.is_carried());
                    self.held.entry(num).or_default().extend(kept);
                    self.carry_later(num, STORAGE_RETRY_MS);
                }
                for message in asked {
                    message.refuse(EngineError::Store(error.clone()));
                }
            }
            Ok(None) => {
                self.give_back(num, &[]);
                if self.unheard.remove(&num) {
                    carry_again(&self.shared, num);
                }
                // One that has ended was counted out, and keeps what it was charged.
                self.shared.accounts.never(num);
                self.count_out(num);
                for message in messages {
                    receive::refuse_unknown(&self.shared, num, message);
                }
            }
            Ok(Some(loaded)) => {
                let mut messages = messages;
                if self.unheard.contains(&num) {
                    // They are carried once more, in their order.
                    messages.retain(|message| !message.is_carried());
                    if messages.is_empty() {
                        messages.push(Internal::Wake.into());
                    }
                }
                let mut messages = messages.into_iter();
                if let Some(first) = messages.next() {
                    self.come_back(num, first, again, loaded);
                }
                for message in messages {
                    self.tell(num, message);
                }
            }
        }
    }

    /// Handles the message that a run was loaded for.
    fn come_back(&mut self, num: u64, first: RunMsg, again: Option<Again>, loaded: Loaded) {
        let Some(first) = self.past_quarantine(&loaded.header, first) else { return };
        if self.unheard.remove(&num) {
            carry_again(&self.shared, num);
        }
        let Some(rows) = loaded.rows else {
            self.give_back(num, &[]);
            // It has ended: it was counted out, and keeps what it was charged.
            self.shared.accounts.never(num);
            self.count_out(num);
            receive::refuse_unknown(&self.shared, num, first);
            return;
        };
        let tasks: Vec<_> = rows.tasks.values().cloned().collect();
        self.give_back(num, &tasks);
        let broken = again.as_ref().is_some_and(|again| again.broken);
        let mut rows = rows;
        let (first, lent) = match first {
            RunMsg::Internal(Internal::Take(lent, publisher)) => {
                // What is cached here may be from before it was published anew.
                rows.publisher = publisher;
                (Internal::Wake.into(), Some(lent))
            }
            first => (first, None),
        };
        let mut run = self.rebuild(loaded.header, *rows, &first, (broken, lent));
        if let Some(Again { waiters, subscribers, .. }) = again {
            run.broken = false;
            run.waiters = waiters;
            run.audience.set(!subscribers.is_empty());
            run.subscribers = subscribers;
        }
        self.hear(run, first);
    }

    fn rebuild(
        &mut self,
        header: Header,
        mut rows: Rows,
        message: &RunMsg,
        (broken, lent): (bool, Option<Lent>),
    ) -> Box<Run> {
        let num = header.num;
        let chain = std::mem::replace(&mut rows.chain, Chain::lean());
        self.lives += 1;
        let cursor = header.cursor;
        let (started, _) = chain.started().expect("a history without a start is not read");
        let grant = Arc::new(grant_of(&started.grant));
        let mut run = Box::new(Run::new(self.lives, header, grant, self.account()));
        run.is_stored = true;
        run.cursor = Some(cursor);
        run.chain = chain;
        run.program = rows.program.as_ref().ok().map(Arc::clone);
        run.publisher = rows.publisher.take();
        run.broken = broken;
        run.lent = lent;
        run.charged = self.shared.accounts.take_up(num, rows.charge.take(), run.chain.spent());
        run.artifacts = std::mem::take(&mut rows.files);
        run.state = std::mem::replace(&mut rows.state, Ok(Default::default()));
        let kept = run.state.as_ref().map_or(0, OwnState::bytes);
        if kept > 0 {
            run.account.keep_state(kept);
        }
        if run.is_ended() && !message.is_query() {
            return run;
        }
        if !run.is_ended() && run.lent.is_none() {
            self.count_in(num);
        }
        // It was quarantined, by its header alone.
        run.restate = run.header.status == RunStatus::Paused && run.chain.paused().is_none();
        run.account.read(run.chain.history_bytes());
        weight::keep_weight(&mut run);
        let turn = &mut self.on(&mut run);
        match &rows.program {
            Err(error) => {
                let reason = format!("its blueprint cannot be loaded: {error}");
                take_up::pause_with(turn, &rows, reason);
            }
            Ok(_) if turn.run.chain.paused().is_some() && !message.is_cancel() => {
                take_up::take_up_open(turn, &rows, HashMap::new());
            }
            Ok(program) => replay_into(turn, &Arc::clone(program), &rows),
        }
        run
    }
}

fn replay_into(turn: &mut Turn<'_>, program: &Arc<Program>, rows: &Rows) {
    let mut outcome = replay::replay(turn, program, &rows.entries);
    if let Err(ReplayStop::Broken(_)) = outcome {
        // A VM without room gives the run one of its own: once more.
        outcome = replay::replay(turn, program, &rows.entries);
    }
    match outcome {
        Err(ReplayStop::Diverged(why)) => take_up::pause_with(turn, rows, why.message),
        Err(ReplayStop::Broken(why)) => {
            take_up::pause_with(turn, rows, format!("its VM has no room: {why}"));
        }
        Ok(replay) if turn.run.is_ended() => turn.run.flow = Some(replay.flow),
        Ok(replay) => {
            fault::point("engine.replayed");
            turn.run.flow = Some(replay.flow);
            take_up::take_up_open(turn, rows, replay.ops);
            weight::keep_weight(turn.run);
            drive::go_on(turn, replay.fresh, replay.next);
            let names: BTreeSet<String> =
                turn.run.chain.signals().into_iter().map(|(name, _)| name).collect();
            for name in names {
                signals::match_signal(turn, &name);
            }
        }
    }
}
