//! Rebuilds the open steps of a run from its journal.

use std::collections::{HashMap, HashSet};

use crate::{
    engine::{
        run::{
            driver::Work, due::Due, loaded::Rows, members::Members, open::Open, perform::Perform,
            question::Question, task::Phase, values::child_id,
        },
        turn::{
            attempts, children,
            facts::{self, Turn},
            follow, helping, opening, places, prepare, reminders, scoped, steps, waiting, wholes,
        },
    },
    flow::{StepOp, TaskRequest},
    journal::{Decision, Fact, Outcome, RunState, Scheduled, StepKey, fingerprint},
    middleware::message_of,
    operator::Residence,
    protocol::{Failure, StepKind, failure::kind},
    store::{TaskPhase, TaskRow},
};

/// Rebuilds what the run's open steps wait for.
pub(crate) fn take_up_open(turn: &mut Turn<'_>, rows: &Rows, mut ops: HashMap<StepKey, StepOp>) {
    let entries = &rows.entries;
    let open: HashSet<u32> = turn.run.chain.open().collect();
    let scheduled: Vec<&Scheduled> = entries
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::StepScheduled(scheduled) if open.contains(&scheduled.step) => Some(&**scheduled),
            _ => None,
        })
        .collect();
    let paused = turn.run.chain.paused().is_some();
    if *turn.run.chain.state() == RunState::Active
        && let Some(program) = &turn.run.program
        && let Some(wall) = program.blueprint().definition().wall_ms
    {
        let began = turn.shared.clock.steady_of(turn.run.header.created_ms);
        turn.run.timers.insert((began + wall, 0, Due::Wall));
    }
    if let RunState::Compensating(_) = turn.run.chain.state() {
        let began = entries.iter().rev().find_map(|entry| match entry.fact {
            Fact::Decided(Decision::Compensate { .. }) => Some(entry.at_ms),
            _ => None,
        });
        let began = turn.shared.clock.steady_of(began.unwrap_or(turn.now_ms));
        let due = began + turn.shared.settings.compensation_ms;
        turn.run.timers.insert((due, 0, Due::Compensation));
    }
    let members = Members::of(entries);
    for step in scheduled {
        let op = ops.remove(&step.key);
        take_up_step(turn, step, op, (paused, &members, rows));
    }
    for (number, child, usage) in rows.late.iter().rev() {
        children::count_late(turn, *number, *child, usage.clone());
    }
}

fn take_up_step(
    turn: &mut Turn<'_>,
    step: &Scheduled,
    op: Option<StepOp>,
    (paused, members, rows): (bool, &Members, &Rows),
) {
    let number = step.step;
    let wake = step.wake_at_ms;
    match step.kind {
        StepKind::Timer => {
            turn.run.open.insert(number, Open::Timer);
            turn.run.timers.insert((wake.unwrap_or_default(), number, Due::Timer));
        }
        StepKind::Signal => {
            turn.run.open.insert(number, Open::Signal);
            if let Some(wake) = wake {
                turn.run.timers.insert((wake, number, Due::SignalDeadline));
            }
        }
        StepKind::Child => {
            let Some(child) = child_id(step.call_id.as_deref()) else { return };
            let input = step.request.clone();
            let open = Open::Child { run: child, blueprint: step.name.clone(), input };
            turn.run.open.insert(number, open);
            children::take_up_child(turn, number, rows.called.get(&number));
        }
        StepKind::Local if step.whole().is_none() => {}
        StepKind::Task | StepKind::ModelCall | StepKind::ToolCall | StepKind::Local => {
            let request = match step.whole() {
                None => match op.unwrap_or_else(|| waiting::request_of(step)) {
                    StepOp::Task(request) => as_edited(*request, step),
                    _ => return,
                },
                Some(whole) => match turn.run.driver(whole).and_then(|it| it.part(step)) {
                    Some((_, Work::State { scope, op })) => {
                        return scoped::take_up_part(turn, number, scope.as_deref(), &op);
                    }
                    Some((request, Work::Task | Work::Refused(_))) => request,
                    None if paused => return,
                    None => {
                        wholes::close_orphan(turn, number, rows.tasks.get(&number));
                        return;
                    }
                },
            };
            let prepared = prepare::prepare(turn, &request);
            match prepared.and_then(|task| wholes::open_of(turn, number, task)) {
                Ok(task @ Open::Task(_)) => {
                    turn.run.open.insert(number, task);
                    if let Err(failure) = follow::take_up_follows(turn, number) {
                        steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
                        return;
                    }
                    take_up_attempt(turn, number, paused, rows.tasks.get(&number));
                }
                Ok(whole) => wholes::take_up(turn, number, whole, members),
                Err(_) if paused => {}
                Err(failure) => {
                    steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
                }
            }
        }
        StepKind::State => scoped::take_up_state(turn, step),
    }
}

/// Returns the request of a step, with its edited input: a fork may give a step another input than
/// its flow does. The recorded fingerprint is that of the flow's own request.
fn as_edited(mut request: TaskRequest, step: &Scheduled) -> TaskRequest {
    if fingerprint(step.kind, &step.name, &step.request) != step.fingerprint {
        request.opts.ask_instead(message_of(&step.request));
        request.input = step.request.clone();
    }
    request
}

/// An attempt that was open when the run was last in memory.
///
/// | the work lived | then |
/// |---|---|
/// | inline | it is done again, as the same attempt |
/// | in the host | it died with it: interrupted, the next attempt opens |
/// | elsewhere | it goes on: deadline, lease and handle are as good as before |
/// | elsewhere, under an older epoch | its handle is no good any more: interrupted |
fn take_up_attempt(turn: &mut Turn<'_>, number: u32, paused: bool, row: Option<&TaskRow>) {
    let Some(step) = turn.run.chain.step(number) else { return };
    let (attempt, counted, open) = (step.attempt, step.counted, step.attempt_open);
    let retry_at = step.retry_at_ms;
    let allowed = step.allowed.as_ref().and_then(|allowed| allowed.decode().ok());
    let row = row.filter(|row| row.attempt == attempt).cloned();
    let has_limit = places::agent_key(turn.run, number).is_some();
    let place = turn.shared.capacity.read(turn.run.num, number) || has_limit;
    let (now, epoch) = (turn.steady_ms, turn.run.header.epoch);
    let clock = turn.shared.clock.clone();
    let Some(task) = turn.run.task_mut(number) else { return };
    task.attempt = attempt;
    task.counted = counted;
    if !open {
        task.phase = Phase::Retry;
        turn.run.timers.insert((retry_at.unwrap_or(turn.now_ms), number, Due::Retry));
        return;
    }
    let Some(row) = row else {
        // It was never dispatched: it waited for a place, or for this commit.
        task.phase = Phase::Capacity;
        if !paused {
            opening::open_attempt(turn, number);
        }
        return;
    };
    match task.residence {
        Residence::Inline => opening::open_attempt(turn, number),
        Residence::Host => {
            task.again = row.phase == TaskPhase::Delivered;
            task.row = Some(Box::new(row));
            task.phase = Phase::Delivered;
            let failure = Failure::new(kind::INTERRUPTED, "the host stopped while it ran");
            attempts::attempt_failed(turn, number, failure.retryable(), None);
        }
        Residence::Elsewhere if row.epoch != epoch && row.phase == TaskPhase::Delivered => {
            task.again = true;
            task.row = Some(Box::new(row));
            task.phase = Phase::Delivered;
            task.place = place;
            let failure = Failure::new(kind::INTERRUPTED, "the run has changed hands");
            attempts::attempt_failed(turn, number, failure.retryable(), None);
        }
        Residence::Elsewhere => {
            task.phase = match row.phase {
                TaskPhase::Pending => Phase::Pending,
                TaskPhase::Delivered => Phase::Delivered,
            };
            task.again = true;
            task.allowed = allowed;
            // At the boot every such attempt was counted.
            task.place = place;
            task.question = row.question.as_deref().and_then(Question::open);
            // No time that was given is longer than it was at first, however the clocks went.
            let own = task.own_lease_ms();
            let given = own.unwrap_or(turn.shared.settings.lease_ms);
            // A renewed lease of its own is stored late by up to a quarter.
            let late = own.unwrap_or_default() / 4;
            let lease = row.lease_ms.filter(|_| task.question.is_none());
            let lease = lease.map(|at| (at + late).min(now + given));
            task.stored_lease_ms = row.lease_ms.unwrap_or_default();
            let deadline =
                row.deadline_ms.map(|at| at.min(now + task.timeout_ms.unwrap_or(u64::MAX >> 1)));
            let (park, phase) = (task.park_ms, row.phase);
            let opened = clock.steady_of(row.opened_ms);
            task.graces = row.graces;
            task.row = Some(Box::new(row.clone()));
            reminders::take_up_inquiry(turn.run, number, &row);
            if let (TaskPhase::Pending, Some(park)) = (phase, park) {
                turn.run.timers.insert((opened + park, number, Due::Park));
            }
            if let Some(deadline) = deadline {
                turn.run.timers.insert((deadline, number, Due::Attempt));
            }
            if let (TaskPhase::Delivered, Some(lease)) = (phase, lease) {
                turn.run.timers.insert((lease, number, Due::Lease));
            }
            let after = &mut turn.run.pending.after;
            if phase == TaskPhase::Pending && !paused {
                after.performs.push(Perform::Dispatch { step: number, attempt });
            }
        }
    }
}

/// Lets a run rest, with the reason; its results are still accepted.
pub(crate) fn pause_with(turn: &mut Turn<'_>, rows: &Rows, reason: String) {
    turn.run.flow = None;
    if turn.run.lent.is_some() {
        // What this node cannot do, the one that drives may.
        tracing::warn!(run = %turn.run.id, reason, "a run of another node goes home");
        return helping::give_up(turn);
    }
    tracing::warn!(run = %turn.run.id, reason, "a run rests");
    take_up_open(turn, rows, HashMap::new());
    if !turn.run.is_ended() && turn.run.chain.paused().is_none() {
        facts::append(turn, Fact::Decided(Decision::Pause { by: "engine".into(), reason }));
    }
}
