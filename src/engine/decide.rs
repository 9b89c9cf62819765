//! What people decide about a run: cancel, pause, resume.

use super::{
    message::ReplyTo,
    receive::{closed, reply_view},
    run::{Perform, Phase, Run},
    shard::Shard,
};
use crate::{
    journal::{Decision, Fact, Outcome, RunState},
    store::Check,
};

impl Shard {
    pub(super) fn cancel(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        reply: Option<ReplyTo<super::RunView>>,
    ) {
        if run.is_ended() {
            if let Some(reply) = reply {
                drop(reply.send(Err(closed(run))));
            }
            return;
        }
        run.pending.checks.extend(jti.map(Check::TokenLive));
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
        reply_view(run, reply);
    }

    pub(super) fn pause(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reason: String,
        reply: ReplyTo<super::RunView>,
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

    pub(super) fn resume(
        &mut self,
        run: &mut Run,
        by: String,
        jti: Option<String>,
        reply: ReplyTo<super::RunView>,
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
                Phase::Pending | Phase::Delivered | Phase::Retry => {}
            }
        }
        self.wake(run);
    }
}
