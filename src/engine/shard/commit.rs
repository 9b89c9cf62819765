//! What a run has for the disk, and what becomes of it: submitted as one batch, then durable and
//! performed, or refused, and the run is read again.

use crate::{
    engine::{
        EngineError,
        run::{
            perform::Perform,
            reply::{Answer, Asked, ReplyTo},
            resident::{After, Failed, Run, Submitted},
            task::Live,
        },
        settings::STORAGE_RETRY_MS,
        shard::{owner::Shard, perform},
        shared::message::{ControlAsk, Internal, RunMsg},
        turn::{batch, places, waiting::Quarantine},
    },
    store::{Batch, RunWrite, StoreError},
};

impl Shard {
    /// Submits what a run has for the disk, and performs what waits for nothing.
    pub(crate) fn flush(&mut self, run: &mut Run) {
        if let Some(after) = batch::submit(&mut self.on(run)) {
            perform::perform(&mut self.on(run), after);
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
                if run.charged && run.is_ended() && run.submitted.is_empty() {
                    self.shared.accounts.ended(run.num);
                }
                perform::perform(&mut self.on(&mut run), after);
                if run.submitted.is_empty() {
                    self.tell_held(num);
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
    if !refusal {
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
        places::recount_places(&mut self.on(&mut run), places);
        if let (Some((parent, step)), Ok(None)) =
            (run.header.parent, self.shared.store.header(run.num))
        {
            self.shared.tell(parent, Internal::ChildLost { step, child: run.id });
        }
        self.tell_held(run.num);
        match damage {
            Some(damage) => {
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
    fn tell_held(&mut self, num: u64) {
        for message in self.held.remove(&num).into_iter().flatten() {
            self.shared.tell(num, message);
        }
    }

    /// Carries once more what is on its way to a run, and reads the run, after a pause.
    pub(crate) fn carry_later(&mut self, run: u64, pause_ms: u64) {
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
        if let Some(mut run) = self.runs.remove(&num) {
            // Somebody has asked for it already; it is let go with its flow.
            self.silence(&run);
            places::cancel_workers(&mut run);
            places::recount_places(&mut self.on(&mut run), Vec::new());
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
        let header = match self.shared.store.header(num) {
            Ok(Some(header)) if !header.status.is_ended() => header,
            Ok(_) => return done(Ok(())),
            Err(error) => {
                tracing::error!(run = num, %error, "could not quarantine a run");
                return done(Err(error));
            }
        };
        let expected = Some(header.cursor);
        let header = crate::engine::turn::waiting::quarantined(header, sort, &reason, self.now_ms);
        self.shared.store.submit(Batch {
            checks: Vec::new(),
            run: Some(RunWrite { header, expected, entries: Vec::new(), whole: true }),
            writes: Vec::new(),
            ack: Box::new(move |result| {
                match &result {
                    Ok(()) => tracing::warn!(run = num, reason, "a run is quarantined"),
                    Err(error) => tracing::error!(run = num, %error, "could not quarantine a run"),
                }
                done(result);
            }),
        });
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
            // Its attempt is over or done only in what never happened; when the run is read again
            // another takes its place.
            Perform::CancelWorker(cancel) | Perform::Reported(Live { cancel, .. }) => {
                cancel.cancel();
            }
            Perform::Dispatch { .. }
            | Perform::State { .. }
            | Perform::StartChild { .. }
            | Perform::CancelChild { .. }
            | Perform::TellParent
            | Perform::Retire { .. }
            | Perform::TellSession(_)
            | Perform::SendSignal { .. } => {}
        }
    }
}
