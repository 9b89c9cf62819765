//! A task is leased in the commit that schedules it, if a worker waits for it.
//!
//! The alternative is a commit more: the task is offered once it is stored, and the worker asks its
//! run for the lease. Here the run claims a waiting poller as its batch is made, and the poller is
//! answered once that batch is durable. If the batch is refused, nothing was claimed.

use crate::{
    engine::{
        run::{resident::Later, task::Phase},
        turn::{dispatch, facts::Turn, leases},
    },
    lua::ScriptFlow,
    operator::{Claim, ClaimedLease},
    protocol::TaskId,
    store::{TaskHold, TaskPhase, TaskRow, Write},
    token::{Need, Verb},
};

/// Leases the tasks that the next batch schedules to the workers that wait for them.
///
/// What is not plain takes the way of its dispatch: a task that a layer or a listener of the flow
/// has to see first, one that the grant does not reach, and the tasks of a run that rests, ends or
/// belongs to another node. The dispatch of a task that was leased finds it delivered.
pub(crate) fn claim(turn: &mut Turn<'_>) {
    if !turn.shared.hub.has_pollers() {
        return;
    }
    let run = &*turn.run;
    let is_plain = !run.is_ended()
        && run.chain.paused().is_none()
        && run.lent.is_none()
        && !run.reload
        && !run.flow.as_ref().is_some_and(ScriptFlow::has_listeners)
        // A later write about who has a task would undo what its row says.
        && !run.pending.writes.iter().any(|write| matches!(write, Write::HoldTask(_)));
    if !is_plain {
        return;
    }
    for place in 0..turn.run.pending.writes.len() {
        let Write::PutTask(row) = &turn.run.pending.writes[place] else { continue };
        let Some(claim) = claim_for(turn, row) else { continue };
        let (step, attempt) = (row.step, row.attempt);
        let hold = take(turn, (step, attempt), claim);
        if let Write::PutTask(row) = &mut turn.run.pending.writes[place]
            && let Some(hold) = hold
        {
            row.held_as(*hold);
        }
    }
}

/// Claims a poller for a task that waits for nothing but its worker.
fn claim_for(turn: &Turn<'_>, row: &TaskRow) -> Option<Claim> {
    let (queue, task) = (row.queue.as_deref()?, turn.run.task(row.step)?);
    let waits = row.phase == TaskPhase::Pending
        && task.phase == Phase::Pending
        && task.attempt == row.attempt
        && task.row.is_some()
        && task.about.is_none();
    if !waits || !dispatch::is_only_offered(turn, task) {
        return None;
    }
    // The gate refuses the others at their dispatch.
    turn.run.grant.check(Verb::Dispatch, &[Need::Operator(&task.operator)]).ok()?;
    turn.shared.hub.claim(queue, &task.agent.agent().labels)
}

/// Leases a task to the poller that was claimed for it; returns what its row is to say of that.
fn take(turn: &mut Turn<'_>, (step, attempt): (u32, u32), claim: Claim) -> Option<Box<TaskHold>> {
    let (lease, hold) = leases::let_have(turn, step, attempt, claim.worker().to_owned());
    if let Some(task) = turn.run.task_mut(step) {
        // As after its dispatch: the layers would have seen it.
        task.again = true;
    }
    let lease = ClaimedLease {
        task: TaskId::new(turn.run.num, step, lease.scheduled_ms),
        handle: lease.handle,
        lease_ms: lease.lease_ms,
        trace: lease.trace,
    };
    let reply: Later = Box::new(move |result| {
        // A refusal is not the poller's: the claim is dropped with it.
        if result.is_ok() {
            claim.fill(lease);
        }
    });
    turn.run.pending.after.replies.push(reply);
    hold
}
