//! A task is leased in the commit that schedules it, if a worker waits for it.
//!
//! The alternative is a commit more: the task is offered once it is stored, and the worker asks its
//! run for the lease. Here the run claims a waiting poller as its batch is made, and the poller is
//! answered once that batch is durable. If the batch is refused, nothing was claimed.

use std::collections::BTreeMap;

use crate::{
    engine::{
        run::{
            perform::{Perform, Taker},
            task::Phase,
        },
        turn::{dispatch, facts::Turn, leases},
    },
    lua::ScriptFlow,
    operator::Claim,
    store::{TaskPhase, TaskRow, Write},
    token::{Need, Verb},
};

/// Leases the tasks that the next batch schedules to the workers that wait for them, in place of
/// their dispatch.
///
/// Other tasks are dispatched: those that a layer or a listener of the flow has to see first, those
/// that the grant does not reach, and those of a run that rests, ends or belongs to another node.
pub(crate) fn claim(turn: &mut Turn<'_>) {
    if !turn.shared.hub.has_pollers() {
        return;
    }
    let run = &*turn.run;
    let is_dispatch = |it: &Perform| matches!(it, Perform::Dispatch { .. });
    let is_plain = !run.is_ended()
        && run.chain.paused().is_none()
        && run.lent.is_none()
        && !run.reload
        && !run.flow.as_ref().is_some_and(ScriptFlow::has_listeners)
        // What an earlier batch is to offer comes first.
        && !run.submitted.iter().any(|it| it.after.performs.iter().any(is_dispatch));
    if !is_plain {
        return;
    }
    let holds = run.pending.writes.iter().enumerate().filter_map(|(place, write)| match write {
        Write::HoldTask(hold) => Some((hold.step, place)),
        _ => None,
    });
    // The last place of each step.
    let holds: BTreeMap<u32, usize> = holds.collect();
    let mut handed = BTreeMap::new();
    for place in 0..turn.run.pending.writes.len() {
        let Write::PutTask(row) = &turn.run.pending.writes[place] else { continue };
        if holds.get(&row.step).is_some_and(|at| *at > place) {
            // That write would undo what its row says of who has it.
            continue;
        }
        let Some(claim) = claim_for(turn, row) else { continue };
        let (step, attempt) = (row.step, row.attempt);
        let (lease, hold) = leases::let_have(turn, step, attempt, claim.worker().to_owned());
        if let Some(task) = turn.run.task_mut(step) {
            // As after its dispatch: the layers would have seen it.
            task.again = true;
        }
        if let (Write::PutTask(row), Some(hold)) = (&mut turn.run.pending.writes[place], hold) {
            row.held_as(*hold);
        }
        handed.insert(step, Perform::Handed { to: Taker::Claimed(claim), lease });
    }
    if handed.is_empty() {
        return;
    }
    let is_handed = |it: &Perform| match it {
        Perform::Dispatch { step, .. } => handed.contains_key(step),
        _ => false,
    };
    turn.run.pending.after.performs.retain(|it| !is_handed(it));
    turn.run.pending.after.performs.extend(handed.into_values());
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
    turn.shared.hub.claim(queue, &task.agent.agent().labels, turn.steady_ms)
}
