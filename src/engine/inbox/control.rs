//! What people decide about a run: cancel, pause, resume.

use std::collections::BTreeSet;

use crate::{
    engine::{
        IdempotencyKey,
        run::{
            answers::{closed, reply_view},
            perform::Perform,
            reply::ReplyTo,
            resident::Run,
            task::{OpenTask, Phase},
        },
        shard::owner::Shard,
    },
    fault,
    journal::{Decision, Fact, Outcome, RunState},
    operator::Ticket,
    store::{Check, Write},
};

impl Shard {
    pub(crate) fn cancel(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<crate::engine::RunView>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        run.pending.checks.extend(jti.map(Check::TokenLive));
        if let Some(key) = &key {
            self.keep_answer(run, &by, key, "null".into());
        }
        self.cancel_now(run, by, reason);
        reply_view(run, Some(reply));
    }

    /// Cancels a run on behalf of the run that called it.
    ///
    /// One that is compensating already is left to it: a second cancel would cut that short, and
    /// the caller may say so twice.
    pub(crate) fn cancel_from(
        &mut self,
        run: &mut Run,
        sender: (u64, u32),
        by: String,
        reason: String,
    ) {
        run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
        if *run.chain.state() == RunState::Active {
            self.cancel_now(run, by, reason);
        }
    }

    fn cancel_now(&mut self, run: &mut Run, by: String, reason: String) {
        fault::point("engine.cancel");
        let decision = Decision::Cancel { by, reason: reason.clone() };
        self.append(run, Fact::Decided(decision));
        if run.chain.paused().is_some() {
            // A run that rests has no flow to compensate with until it is replayed.
            self.append(run, Fact::Decided(Decision::Resume { by: "cancel".into() }));
        }
        match run.chain.state() {
            RunState::Compensating(ending) => {
                let ending = ending.clone();
                self.end(run, ending);
            }
            RunState::Active | RunState::Ended(_) => self.wind_up(run, Outcome::Canceled(reason)),
        }
    }

    pub(crate) fn pause(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        reply: ReplyTo<crate::engine::RunView>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        if run.chain.paused().is_none() {
            run.pending.checks.extend(jti.map(Check::TokenLive));
            self.append(run, Fact::Decided(Decision::Pause { by, reason }));
        }
        reply_view(run, Some(reply));
    }

    pub(crate) fn resume(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reply: ReplyTo<crate::engine::RunView>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        if run.chain.paused().is_some() {
            run.pending.checks.extend(jti.map(Check::TokenLive));
            self.append(run, Fact::Decided(Decision::Resume { by }));
            // Results that came meanwhile are in the journal: the replay hands them to the flow.
            // Workers in the host are kept: the replay would take them for dead.
            if run.flow.is_some() {
                self.wake_after_pause(run);
            } else {
                run.reload = true;
            }
        }
        reply_view(run, Some(reply));
    }

    /// A queue's task may have been refused to a worker while its run rested, or taken for one that
    /// went away: it is put back.
    pub(crate) fn offer_again(&self, task: &OpenTask, run: u64, step: u32) {
        if let Some(row) = task.row.as_ref().filter(|row| row.kind == "queue") {
            let ticket = Ticket { run, step, attempt: task.attempt };
            let queue = row.queue.as_deref().unwrap_or_default();
            self.shared.hub.offer(queue, ticket, &task.agent.agent().labels);
        }
    }

    /// Goes on where a pause held a run back that is still in memory.
    fn wake_after_pause(&mut self, run: &mut Run) {
        let open: Vec<u32> = run.chain.open().collect();
        for number in open {
            let Some(task) = run.task(number) else { continue };
            match task.phase {
                Phase::Capacity => self.open_attempt(run, number),
                Phase::Pending if task.live.is_none() => {
                    let attempt = task.attempt;
                    run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
                }
                Phase::Pending => self.offer_again(task, run.num, number),
                Phase::Delivered | Phase::Retry => {}
            }
        }
        let names: BTreeSet<String> =
            run.chain.signals().into_iter().map(|(name, _)| name).collect();
        for name in names {
            self.match_signal(run, &name);
        }
        self.wake(run);
    }
}
