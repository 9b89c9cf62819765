//! What a run has for the disk, and what becomes of it: submitted as one batch, then durable and
//! performed, or refused, and the run is read again.

use std::sync::Arc;

use crate::{
    engine::{
        EngineError,
        run::{
            log_line,
            perform::Perform,
            reply::ReplyTo,
            resident::{After, Failed, Pending, Run, Submitted},
            task::Live,
        },
        settings::STORAGE_RETRY_MS,
        shard::{owner::Shard, serve::cancel_workers},
        shared::message::{Msg, RunMsg},
        turn::waiting::Quarantine,
    },
    fault::{self, Break},
    journal::RunState,
    store::{Batch, Check, JournalRow, RunStatus, RunWrite, StoreError, Write},
};

impl Shard {
    /// Submits what a run has for the disk, as one batch.
    pub(crate) fn flush(&mut self, run: &mut Run) {
        if !run.has_pending() || run.damaged.is_some() {
            return;
        }
        let mut pending = std::mem::take(&mut run.pending);
        let states = !pending.entries.is_empty() || std::mem::take(&mut run.restate);
        if !states && pending.writes.is_empty() && run.submitted.is_empty() {
            self.perform(run, pending.after);
            return;
        }
        run.batches += 1;
        let batch = run.batches;
        if run.is_ended() && run.end_batch.is_none() {
            run.end_batch = Some(batch);
        }
        if let (true, Some(cursor)) = (pending.entries.is_empty(), run.cursor) {
            // Without entries nothing else would refuse it after a batch before it failed.
            pending.checks.push(Check::RunAt { run: run.num, cursor });
        }
        let write = states.then(|| self.run_write(run, &pending.entries));
        if run.charged {
            self.charge(run, &mut pending, write.as_ref());
        }
        let bytes = pending.bytes();
        let kind = |step| run.task(step).and_then(|task| Some(task.row.as_ref()?.kind.as_str()));
        let is_outside = |step| matches!(kind(step), Some("human" | "main_ai" | "queue"));
        pending.after.lines = log_line::lines(run.id, &run.header, &pending.entries, is_outside);
        if !run.subscribers.is_empty() {
            pending.after.events.extend(
                pending.entries.iter().map(|e| crate::engine::view::events::view(run.num, e)),
            );
        }
        if fault::is_broken(Break::AckBeforeCommit) {
            self.perform(run, std::mem::take(&mut pending.after));
        }
        run.submitted.push_back(Submitted { batch, bytes, after: pending.after });
        let (num, life) = (run.num, run.life);
        let shared = Arc::clone(&self.shared);
        self.shared.store.submit(Batch {
            checks: pending.checks,
            run: write,
            writes: pending.writes,
            ack: Box::new(move |result| {
                shared.send(num, Msg::Committed { run: num, batch, life, result });
            }),
        });
    }

    /// Charges a run for what it stores, in the commit that stores it.
    fn charge(&self, run: &Run, pending: &mut Pending, write: Option<&RunWrite>) {
        let rows = write.map_or(&[][..], |write| &write.entries);
        let entries: u64 = rows.iter().map(|row| row.bytes.len() as u64).sum();
        let files = pending.writes.iter().map(|write| match write {
            Write::PutArtifact(file) => file.size,
            _ => 0,
        });
        let bytes = entries + files.sum::<u64>();
        let row = self.shared.accounts.charge(run.num, run.chain.spent(), bytes);
        pending.writes.extend(row.map(Write::PutCharge));
    }

    fn run_write(&mut self, run: &mut Run, entries: &[crate::journal::Entry]) -> RunWrite {
        let expected = run.cursor;
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            let lsn = self.shared.store.next_lsn();
            let row = JournalRow::new(run.num, lsn, run.cursor, entry);
            run.header.bytes += row.bytes.len() as u64;
            rows.push(row);
            run.cursor = Some(lsn);
        }
        let whole = self.refresh_header(run) || expected.is_none();
        RunWrite { header: run.header.clone(), expected, entries: rows, whole }
    }

    /// Brings the header up to the chain; says whether more changed than its counters.
    fn refresh_header(&mut self, run: &mut Run) -> bool {
        let (steps, done) = run.chain.counts();
        let before = run.chain.next_step() - 1 - steps;
        let status = crate::engine::turn::waiting::status(run);
        let ended = status.is_ended();
        let wake_at_ms = if ended {
            None
        } else {
            crate::engine::turn::waiting::wake_at(run, &self.shared.clock)
        };
        let waiting_on = match status {
            RunStatus::Waiting | RunStatus::Paused => crate::engine::turn::waiting::describe(
                run,
                status,
                &self.shared.sessions,
                &self.shared.clock,
            ),
            RunStatus::Running | RunStatus::Compensating
                if !run.open.is_empty() || run.chain.paused().is_some() || run.account.parked =>
            {
                crate::engine::turn::waiting::describe(
                    run,
                    status,
                    &self.shared.sessions,
                    &self.shared.clock,
                )
            }
            _ => None,
        };
        let error = match run.chain.state() {
            RunState::Ended(outcome) | RunState::Compensating(outcome) => {
                crate::engine::turn::waiting::error(outcome)
            }
            RunState::Active => run.chain.paused().map(crate::engine::turn::waiting::paused),
        };
        let said = run.chain.status().map(|(text, progress)| (text.to_owned(), progress));
        let header = &mut run.header;
        let (status_text, progress) = said.map_or((None, None), |(text, p)| (Some(text), p));
        let whole = header.status != status
            || header.wake_at_ms != wake_at_ms
            || header.waiting_on != waiting_on
            || header.error != error
            || header.status_text != status_text
            || header.progress != progress;
        header.status = status;
        header.wake_at_ms = wake_at_ms;
        header.waiting_on = waiting_on;
        header.error = error;
        header.status_text = status_text;
        header.progress = progress;
        header.cursor = run.cursor.unwrap_or_default();
        header.seq = run.chain.seq();
        header.steps = before + steps;
        header.steps_done = before + done;
        header.updated_ms = run.chain.last_ms();
        if ended && header.ended_ms.is_none() {
            header.ended_ms = Some(run.chain.last_ms());
        }
        whole
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
                self.perform(&mut run, after);
                if run.submitted.is_empty() {
                    self.tell_held(num);
                }
                self.settle(run);
                return;
            }
            (Err(error), None) => self.fail(&mut run, after, &error),
            (_, Some(failed)) => undo(failed, after, &StoreError::Moved { run: num }),
        }
        if run.submitted.is_empty() {
            self.lost(run);
        } else {
            self.runs.insert(num, run);
        }
    }

    /// A batch was refused: what the run is in memory never happened. Nothing more comes of it.
    pub(crate) fn fail(&mut self, run: &mut Run, after: After, error: &StoreError) {
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
        cancel_workers(run);
        run.failed = Some(failed);
    }

    /// Lets go of a run that failed, once the fate of all its batches is known. It is read again.
    pub(crate) fn lost(&mut self, mut run: Box<Run>) {
        let Some(Failed { refusal, damage, places }) = run.failed.take() else { return };
        self.recount_places(&mut run, places);
        if let (Some((parent, step)), Ok(None)) =
            (run.header.parent, self.shared.store.header(run.num))
        {
            self.shared.tell(parent, RunMsg::ChildLost { step, child: run.id });
        }
        self.tell_held(run.num);
        match damage {
            Some(damage) => {
                // Whoever asks for the run finds the reason in its header.
                let (reply, _) = tokio::sync::oneshot::channel();
                let reason = format!("it cannot go on: failed to {damage}");
                self.tell(run.num, RunMsg::Quarantine { reason, reply });
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
    pub(crate) fn quarantine(&mut self, num: u64, reason: String, reply: ReplyTo<()>) {
        drop(self.held.remove(&num));
        if let Some(mut run) = self.runs.remove(&num) {
            // Somebody has asked for it already; it is let go with its flow.
            self.silence(&run);
            cancel_workers(&mut run);
            self.recount_places(&mut run, Vec::new());
        }
        self.pause_header(num, Quarantine::Deadly, reason, move |result| {
            drop(reply.send(result.map_err(EngineError::Store)));
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
