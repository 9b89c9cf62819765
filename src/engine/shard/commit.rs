//! Submits a run's pending writes as one batch. After the acknowledgement its effects are performed;
//! if the batch is refused, the run is read again.

use std::sync::Arc;

use crate::{
    engine::{
        EngineError,
        run::{
            perform::Perform,
            reply::{Answer, Asked, ReplyTo},
            resident::{After, Failed, Run, Submitted},
            task::{AgentKey, Live},
        },
        settings::STORAGE_RETRY_MS,
        shard::{owner::Shard, perform},
        shared::message::{ControlAsk, Internal, Msg, RunMsg},
        turn::{
            batch, places,
            waiting::{self, Quarantine},
        },
    },
    store::{Batch, RunStatus, RunWrite, StoreError, TaskFilter, TaskRow},
};

impl Shard {
    /// Submits what a run has for the disk, and performs what waits for nothing.
    pub(crate) fn flush(&mut self, run: &mut Run) {
        if let Some(after) = batch::submit(&mut self.on(run)) {
            perform::perform(&mut self.on(run), after);
            if run.has_pending() {
                self.line_up(run);
            } else if run.submitted.is_empty() {
                // No commit comes that would hand it on.
                self.tell_held(run.num);
            }
        }
    }

    pub(crate) fn committed(
        &mut self,
        num: u64,
        batch: u64,
        life: u64,
        result: Result<(), StoreError>,
    ) {
        let Some(mut run) = self.runs.remove(&num) else { return };
        if run.life != life {
            self.runs.insert(num, run);
            return;
        }
        let front = run.submitted.pop_front();
        debug_assert!(front.as_ref().is_some_and(|it| it.batch == batch), "batches end in order");
        let Some(Submitted { after, .. }) = front else { return };
        match (result, &mut run.failed) {
            (Ok(()), None) => {
                run.is_stored = true;
                if run.is_ended() && run.submitted.is_empty() {
                    self.shared.state.drop_run(run.id);
                    if run.charged {
                        self.shared.accounts.ended(run.num);
                    }
                }
                perform::perform(&mut self.on(&mut run), after);
                if run.submitted.is_empty() {
                    self.tell_held(num);
                    if run.is_to_be_lent() {
                        return self.hand_over(run);
                    }
                }
                self.settle(run);
                return;
            }
            (Err(error), None) => fail(&mut run, after, &error),
            (_, Some(failed)) => undo(failed, after, &StoreError::Moved { run: num }),
        }
        if run.submitted.is_empty() {
            self.lost(run);
        } else {
            self.runs.insert(num, run);
        }
    }
}

/// A batch was refused: what the run is in memory never happened. Nothing more comes of it.
pub(crate) fn fail(run: &mut Run, after: After, error: &StoreError) {
    let refusal = matches!(error, StoreError::Revoked { .. } | StoreError::KeyUsed { .. });
    if matches!(error, StoreError::Closed) {
        tracing::debug!(run = %run.id, "a run was not written: its store is closed");
    } else if !refusal {
        tracing::error!(run = %run.id, %error, "could not write a run; it is read again");
    }
    let damage = matches!(error, StoreError::Damaged { .. }).then(|| error.to_string());
    let mut failed = Failed { refusal, damage, places: Vec::new() };
    undo(&mut failed, after, error);
    // The refusal is about one request; what came after it only stood behind it.
    let behind = match failed.damage {
        Some(_) => error.clone(),
        None => StoreError::Moved { run: run.num },
    };
    undo(&mut failed, std::mem::take(&mut run.pending).after, &behind);
    run.inbox.clear();
    places::cancel_workers(run);
    run.failed = Some(failed);
}

impl Shard {
    /// Lets go of a run that failed, once the fate of all its batches is known. It is read again.
    pub(crate) fn lost(&mut self, mut run: Box<Run>) {
        let Some(Failed { refusal, damage, places }) = run.failed.take() else { return };
        if self.is_helper() {
            return self.give_home(run);
        }
        self.let_go(&mut run, places);
        if let Some((parent, step)) = run.header.parent.filter(|_| !run.is_stored) {
            let (shared, child) = (Arc::clone(&self.shared), run.id);
            self.shared.tasks.spawn_blocking(move || {
                if let Ok(None) = shared.store.header(child.num()) {
                    shared.tell(parent, Internal::ChildLost { step, child });
                }
            });
        }
        if damage.is_none() && !refusal {
            self.resting.insert(run.num, self.steady_ms + STORAGE_RETRY_MS);
        }
        if let Some(held) = self.held.get_mut(&run.num) {
            // These are carried once more, in their order.
            held.retain(|message| !message.is_carried());
        }
        self.tell_held(run.num);
        match damage {
            Some(damage) => {
                self.unheard.insert(run.num);
                // Whoever asks for the run finds the reason in its header.
                let (reply, _) = tokio::sync::oneshot::channel();
                let reason = format!("it cannot go on: failed to {damage}");
                let ask = ControlAsk::Quarantine { reason };
                self.tell(run.num, RunMsg::Control(Asked { ask, reply }));
            }
            None => self.carry_later(run.num, if refusal { 0 } else { STORAGE_RETRY_MS }),
        }
    }

    /// Hands on what waited until nothing of a run was on its way to the disk.
    pub(crate) fn tell_held(&mut self, num: u64) {
        for message in self.held.remove(&num).into_iter().flatten() {
            self.shared.tell(num, message);
        }
    }

    /// Carries once more what is on its way to a run, and reads the run, after a pause.
    pub(crate) fn carry_later(&mut self, run: u64, pause_ms: u64) {
        if self.is_helper() {
            return;
        }
        self.unheard.insert(run);
        self.wake_later(run, pause_ms);
    }

    /// A run that cannot be read rests. Its header says why; its rows stay as they are, and
    /// `resume` reads them again.
    pub(crate) fn quarantine_damaged(&self, num: u64, error: &StoreError) {
        let reason = format!("it cannot be read: {error}");
        self.pause_header(num, Quarantine::Damaged, reason, |_| {});
    }

    /// A run that kills the host rests by its header alone: nothing reads its rows until somebody
    /// says so, with `resume` or `cancel`.
    pub(crate) fn quarantine(&mut self, num: u64, reason: String, reply: ReplyTo<Answer>) {
        drop(self.held.remove(&num));
        self.loading.remove(&num);
        if let Some(mut run) = self.runs.remove(&num) {
            // Somebody has asked for it already; it is let go with its flow.
            self.silence(&run);
            places::cancel_workers(&mut run);
            self.let_go(&mut run, Vec::new());
        }
        self.pause_header(num, Quarantine::Deadly, reason, move |result| {
            drop(reply.send(result.map(|()| Answer::Done).map_err(EngineError::Store)));
        });
    }

    fn pause_header(
        &self,
        num: u64,
        sort: Quarantine,
        reason: String,
        done: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) {
        let (shared, now_ms) = (Arc::clone(&self.shared), self.now_ms);
        batch::hand_in(&*shared.store);
        let recounts = self.unplaced.contains_key(&num);
        self.shared.tasks.spawn_blocking(move || {
            if recounts {
                let filter = TaskFilter { run: Some(num), limit: usize::MAX, ..Default::default() };
                let tasks = shared.store.tasks(&filter).unwrap_or_default();
                shared.send(num, Msg::Recounted(num, tasks));
            }
            let header = match shared.store.header(num) {
                Ok(Some(header)) if !header.status.is_ended() => header,
                Ok(_) => return done(Ok(())),
                Err(error) => {
                    tracing::error!(run = num, %error, "could not quarantine a run");
                    return done(Err(error));
                }
            };
            let error = Some(waiting::paused(&reason));
            if header.status == RunStatus::Paused && header.error == error {
                // The run is quarantined already: it was read once more, in vain.
                return done(Ok(()));
            }
            shared.counts.quarantined.inc();
            let expected = Some(header.cursor);
            let header = waiting::quarantined(header, sort, &reason, now_ms);
            shared.store.submit(Batch {
                checks: Vec::new(),
                run: Some(RunWrite { header, expected, entries: Vec::new(), whole: true }),
                writes: Vec::new(),
                ack: Box::new(move |result| {
                    match &result {
                        Ok(()) => tracing::warn!(run = num, reason, "a run is quarantined"),
                        Err(error) => {
                            tracing::error!(run = num, %error, "could not quarantine a run");
                        }
                    }
                    done(result);
                }),
            });
        });
    }

    /// Keeps the places of a run that is let go, with those that it would have given back, until it
    /// is known which of its attempts outlive it.
    pub(crate) fn let_go(&mut self, run: &mut Run, unperformed: Vec<AgentKey>) {
        // A helper has no places to give.
        let Some(program) = run.program.clone().filter(|_| !self.is_helper()) else { return };
        let mut held = unperformed;
        held.extend(places::take_places(&mut self.on(run)));
        self.unplaced.entry(run.num).or_insert_with(|| (program, Vec::new())).1.extend(held);
    }

    /// Gives back the places of a run that was let go, but for those of its stored attempts.
    pub(crate) fn give_back(&mut self, num: u64, stored: &[TaskRow]) {
        if let Some((program, held)) = self.unplaced.remove(&num) {
            places::recount_places(&self.shared, &program, held, stored);
        }
    }
}

/// Takes back what was to follow from a batch that was refused, or stood behind one.
fn undo(failed: &mut Failed, after: After, error: &StoreError) {
    for reply in after.replies {
        reply(Err(EngineError::Store(error.clone())));
    }
    for perform in after.performs {
        match perform {
            Perform::Release(agent) => failed.places.push(agent),
            Perform::Handed { to, .. } => to.refuse(EngineError::Store(error.clone())),
            // Its attempt is over or done only in what never happened; when the run is read again
            // another takes its place.
            Perform::CancelWorker(cancel) | Perform::Reported(Live { cancel, .. }) => {
                cancel.cancel();
            }
            Perform::Dispatch { .. }
            | Perform::State { .. }
            | Perform::Change { .. }
            | Perform::LetGo(_)
            | Perform::Begun(_)
            | Perform::StartChild { .. }
            | Perform::CancelChild { .. }
            | Perform::TellParent
            | Perform::Announce
            | Perform::Keep(_)
            | Perform::Retire { .. }
            | Perform::TellSession(_)
            | Perform::SendSignal { .. } => {}
        }
    }
}
