//! An attempt reaches its worker: offered, leased, delivered.

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            due::Due,
            perform::{Perform, Taker},
            reply::{Answer, ReplyTo},
            task::{OpenTask, Phase},
        },
        shared::{message::refuse_lease, shards::Shared},
        turn::{
            facts::{self, Turn},
            lineage, settle,
        },
    },
    fault,
    journal::{ALLOWED, Additions, Fact},
    operator::{Delivery, DurableLease, LeaseReturn, TaskLease, Ticket},
    protocol::{Json, TaskId},
    store::{TaskHold, TaskPhase, Write},
    token::Handle,
};

/// A lease that was stored later than this, in milliseconds, or than a quarter of what it gives,
/// begins when it is stored.
const LATE_MS: u64 = 1_000;

/// Leases an attempt to a worker of a queue. The answer may wait for the layers of the middleware.
pub(crate) fn lease(
    turn: &mut Turn<'_>,
    step: u32,
    attempt: u32,
    worker: String,
    reply: ReplyTo<Answer>,
) {
    let free = turn.run.task(step).is_some_and(|task| {
        task.attempt == attempt && task.phase == Phase::Pending && task.row.is_some()
    });
    if !free || turn.run.chain.paused().is_some() {
        refuse_lease(reply);
        return;
    }
    if reply.is_closed() {
        // Who asked is gone: another takes it now, not when the lease would have ended.
        if let Some(task) = turn.run.task(step) {
            offer_again(turn.shared, task, turn.run.num, step);
        }
        return;
    }
    if let Some(task) = turn.run.task_mut(step)
        && !task.about.as_ref().is_some_and(|about| about.has_passed())
    {
        // A queue has tasks from the start that no layer has seen since: the dispatch that
        // follows from reading the run decides whether the worker gets it.
        if let Some((_, other)) = task.leasing.replace((worker, reply)) {
            refuse_lease(other);
        }
        return;
    }
    let (lease, hold) = let_have(turn, step, attempt, worker);
    turn.run.pending.writes.extend(hold.map(Write::HoldTask));
    turn.run.pending.after.performs.push(Perform::Handed { to: Taker::Asked(reply), lease });
}

/// Lets a worker of a queue have a waiting attempt. Returns its lease, to be handed over once
/// that is durable, and what is to be stored of who has it.
pub(crate) fn let_have(
    turn: &mut Turn<'_>,
    step: u32,
    attempt: u32,
    worker: String,
) -> (Box<TaskLease>, Option<Box<TaskHold>>) {
    fault::point("engine.lease");
    let own = turn.run.task(step).and_then(OpenTask::own_lease_ms);
    let lease_ms = turn.steady_ms + own.unwrap_or(turn.shared.settings.lease_ms);
    if let Some(task) = turn.run.task_mut(step) {
        task.handing_ms = Some(turn.steady_ms);
        if let Some(row) = &mut task.row {
            row.lease_ms = Some(lease_ms);
        }
    }
    turn.run.timers.insert((lease_ms, step, Due::Lease));
    let hold = hand_over(turn, step, attempt, Delivery { worker });
    let scheduled_ms = turn.run.chain.step(step).map_or(0, |step| step.scheduled_ms);
    let lease = TaskLease {
        task: TaskId::new(turn.run.num, step, scheduled_ms),
        attempt,
        handle: Handle::mint(&turn.shared.handles, &turn.run.attempt_id(step, attempt)).expose(),
        lease_ms: turn.shared.clock.wall_of(lease_ms),
        trace: turn.shared.span_of(turn.run, step),
    };
    (Box::new(lease), hold)
}

/// The lease of an attempt is durable: its worker gets it, unless the attempt has ended since.
pub(crate) fn hand(turn: &mut Turn<'_>, to: Taker, mut lease: Box<TaskLease>) {
    let (now, step) = (turn.steady_ms, lease.task.step());
    let task = turn.run.task_mut(step).filter(|task| task.is_with_worker(lease.attempt));
    let Some(task) = task else {
        return match to {
            Taker::Claimed(claim) => drop(claim),
            Taker::Asked(reply) => refuse_lease(reply),
        };
    };
    let lease_ms = task.own_lease_ms().unwrap_or(turn.shared.settings.lease_ms);
    let shortest_ms = task.timeout_ms.map_or(lease_ms, |timeout| timeout.min(lease_ms));
    let late_ms = LATE_MS.min(shortest_ms / 4);
    let is_late = task.handing_ms.take().is_some_and(|at| now.saturating_sub(at) > late_ms);
    if is_late && let Some(lease_ms) = begin_again(turn, step) {
        lease.lease_ms = turn.shared.clock.wall_of(lease_ms);
    }
    let lease = DurableLease::new(lease, Arc::clone(turn.shared) as Arc<dyn LeaseReturn>);
    match to {
        Taker::Claimed(claim) => claim.fill(lease),
        // With a caller that is gone, the lease goes back.
        Taker::Asked(reply) => drop(reply.send(Ok(Answer::Lease(lease)))),
    }
}

/// Lets the lease and the timeout of an attempt begin again; returns the end of the lease.
fn begin_again(turn: &mut Turn<'_>, step: u32) -> Option<u64> {
    let (now, of_host) = (turn.steady_ms, turn.shared.settings.lease_ms);
    let task = turn.run.task_mut(step)?;
    let lease_ms = now + task.own_lease_ms().unwrap_or(of_host);
    let deadline_ms = task.timeout_ms.map(|timeout| now + timeout);
    let row = task.row.as_mut()?;
    task.stored_lease_ms = lease_ms;
    (row.lease_ms, row.deadline_ms) = (Some(lease_ms), deadline_ms);
    let hold = Box::new(row.hold());
    turn.run.pending.writes.push(Write::HoldTask(hold));
    for (due, at) in [(Due::Lease, Some(lease_ms)), (Due::Attempt, deadline_ms)] {
        turn.run.timers.remove(step, due);
        if let Some(at) = at {
            turn.run.timers.insert((at, step, due));
        }
    }
    Some(lease_ms)
}

/// Every layer has let an attempt pass: who wanted to lease it gets it, or else whoever asks.
pub(crate) fn passed(turn: &mut Turn<'_>, step: u32, attempt: u32) {
    let paused = turn.run.chain.paused().is_some();
    let Some(task) = turn.run.task_mut(step) else { return };
    let waits = task.phase == Phase::Pending && !paused;
    match task.leasing.take() {
        Some((worker, reply)) => lease(turn, step, attempt, worker, reply),
        None if waits => {
            let task = turn.run.task(step).expect("it was there just now");
            offer_again(turn.shared, task, turn.run.num, step);
        }
        None => {}
    }
}

/// A queue's task may have been refused to a worker while its run rested, or taken for one that
/// went away: it is put back.
pub(crate) fn offer_again(shared: &Arc<Shared>, task: &OpenTask, run: u64, step: u32) {
    if let Some(queue) = task.row.as_ref().and_then(|row| row.queue.as_deref()) {
        let ticket = Ticket { run, step, attempt: task.attempt };
        shared.hub.offer(queue, ticket, &task.agent.agent().labels);
    }
}

/// Renews the lease that an agent sets: its worker has asked for something. It is stored when a
/// quarter of it has passed, so that progress costs no write each time.
pub(crate) fn renew(turn: &mut Turn<'_>, step: u32) {
    let now = turn.steady_ms;
    let Some(task) = turn.run.task_mut(step) else { return };
    let Some(own) = task.own_lease_ms() else { return };
    let Some(row) = &mut task.row else { return };
    // While a senior is asked, it stands still.
    if task.phase != Phase::Delivered || task.question.is_some() || row.lease_ms.is_none() {
        return;
    }
    let lease_ms = now + own;
    (row.lease_ms, row.graces, task.graces) = (Some(lease_ms), 0, 0);
    if lease_ms.saturating_sub(task.stored_lease_ms) >= own / 4 {
        task.stored_lease_ms = lease_ms;
        let row = row.clone();
        turn.run.pending.writes.push(Write::PutTask(row));
    }
    turn.run.timers.remove(step, Due::Lease);
    turn.run.timers.insert((lease_ms, step, Due::Lease));
}

/// An attempt reached its worker: its timeout begins.
pub(crate) fn delivered(turn: &mut Turn<'_>, number: u32, attempt: u32, by: Delivery) {
    let hold = hand_over(turn, number, attempt, by);
    turn.run.pending.writes.extend(hold.map(Write::HoldTask));
}

/// The same, but for its row: returns what is to be stored of who has it.
fn hand_over(
    turn: &mut Turn<'_>,
    number: u32,
    attempt: u32,
    by: Delivery,
) -> Option<Box<TaskHold>> {
    let now = turn.steady_ms;
    let num = turn.run.num;
    let task = turn.run.task_mut(number)?;
    if task.attempt != attempt || task.phase != Phase::Pending {
        return None;
    }
    fault::point("engine.delivered");
    let mut by = by;
    if task.holds_session && task.row.is_some() {
        // Whoever fetched it did so for the session that has it.
        let ticket = Ticket { run: num, step: number, attempt };
        if let Some(session) = turn.shared.sessions.holder(ticket) {
            turn.shared.sessions.delivered(&session, ticket);
            by.worker = session.0;
        }
    }
    task.phase = Phase::Delivered;
    // A task for people has had its deadline since it was asked.
    let asked = task.row.as_ref().and_then(|row| row.deadline_ms);
    let deadline_ms = asked.or(task.timeout_ms.map(|timeout| now + timeout));
    task.graces = 0;
    let own = task.own_lease_ms();
    let (mut lease_ms, mut hold) = (None, None);
    if let Some(row) = &mut task.row {
        if let (Some(own), None) = (own, row.lease_ms) {
            lease_ms = Some(now + own);
            row.lease_ms = lease_ms;
        }
        task.stored_lease_ms = row.lease_ms.unwrap_or_default();
        row.phase = TaskPhase::Delivered;
        row.worker = Some(by.worker.clone());
        (row.deadline_ms, row.graces) = (deadline_ms, 0);
        hold = Some(Box::new(row.hold()));
    }
    turn.run.timers.remove(number, Due::Park);
    turn.run.timers.remove(number, Due::Attempt);
    if let Some(deadline) = deadline_ms {
        turn.run.timers.insert((deadline, number, Due::Attempt));
    }
    if let Some(lease_ms) = lease_ms {
        turn.run.timers.insert((lease_ms, number, Due::Lease));
    }
    let worker = by.worker;
    lineage::note_joined(turn, &worker);
    let deadline_ms = deadline_ms.map(|at| turn.shared.clock.wall_of(at));
    let mut additions = Additions::default();
    // A restart does not pass it through the layers again.
    if let Some(allowed) = turn.run.task(number).and_then(settle::left_by_layers) {
        additions.put(ALLOWED, Json::encode(&allowed).expect("a list of names is plain data"));
    }
    let delivered = Fact::AttemptDelivered { step: number, attempt, worker, deadline_ms };
    facts::append_with(turn, delivered, additions);
    hold
}
