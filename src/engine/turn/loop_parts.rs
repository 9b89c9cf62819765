//! Advancing the loop of a model: its next calls, as steps of their own.

use crate::{
    blueprint::Does,
    engine::{
        run::{
            branches::{is_held, part_key, shown},
            open::OpenKind,
            perform::Perform,
            task::Phase,
        },
        turn::{boundary, facts::Turn, limits, loops, opening, scoped, settle, steps, tasks},
    },
    fault,
    flow::{
        StateOp, StepOp, TaskRequest,
        response::{self, Begin, Call, Stop},
    },
    journal::{Outcome, StepKey},
    protocol::{ExitReason, Failure, failure::kind},
};

/// Lets a loop go on as far as it can.
pub(crate) fn loop_one(turn: &mut Turn<'_>, number: u32) {
    if is_held(turn.run, number) {
        return;
    }
    release_held(turn, number);
    while let Some(open) = turn.run.model_loop_mut(number) {
        if let Some(failure) = open.broken.take() {
            loops::stop_loop(turn, number, *Stop::of(failure));
            return;
        }
        if open.recorded < open.begun.len() {
            begin_parts(turn, number);
            if turn.run.is_ended() || turn.run.reload {
                return;
            }
            continue;
        }
        let next = open.flow.turn(&open.judge);
        let events = open.flow.take_events();
        for event in events {
            settle::told(turn, Some(number), &event);
        }
        let Some(open) = turn.run.model_loop_mut(number) else { return };
        match next {
            response::Turn::Wait => return,
            response::Turn::Begin(parts) => open.begun.extend(parts),
            response::Turn::Done { value, .. } => {
                loops::tell_exit(turn, number, &ExitReason::Complete);
                steps::finish_step(turn, number, Outcome::Completed(value), None, None);
            }
            response::Turn::Stop(stop) => loops::stop_loop(turn, number, *stop),
        }
    }
}

/// Records what began: all of it, before any of it is executed.
fn begin_parts(turn: &mut Turn<'_>, number: u32) {
    fault::point("engine.loop_batch");
    let Some(key) = turn.run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
        return;
    };
    while let Some(open) = turn.run.model_loop_mut(number) {
        let place = open.recorded;
        let Some(begin) = open.begun.get(place).cloned() else { return };
        open.recorded += 1;
        if !open.flow.may_start(place) {
            open.held.insert(place);
        }
        let Some(request) = open.request_of(place) else { return };
        if let Some(breach) = limits::breach(turn).or_else(|| limits::task_breach(turn.run)) {
            limits::break_limit(turn, breach);
            return;
        }
        let key = part_key(&key, place);
        match begin {
            Begin::Refuse(_, failure) => {
                let op = StepOp::Task(Box::new(request));
                let failure = failure.at(turn.run.chain.next_step(), Some(op.name()), 1);
                steps::record(turn, &key, &op, Outcome::Failed(failure));
            }
            Begin::Call(call) => begin_call(turn, number, key, &call, request),
            Begin::Flush { turn: at } => {
                let Some(open) = turn.run.model_loop(number) else { return };
                let (scope, asked) = (open.flush_scope.clone(), open.flush_op(at));
                schedule_state_call(turn, &key, request, scope.as_deref(), asked);
            }
            begin @ (Begin::Recall | Begin::Keep) => {
                let Some(open) = turn.run.model_loop(number) else { return };
                let Some((scope, asked)) = open.conversation_op(&begin) else { return };
                schedule_state_call(turn, &key, request, Some(&scope), asked);
            }
            Begin::List { .. } | Begin::Ask { .. } | Begin::Compact { .. } | Begin::Approve(_) => {
                tasks::schedule_task(turn, key, request);
            }
        }
    }
}

/// Begins a call of a tool.
fn begin_call(turn: &mut Turn<'_>, number: u32, key: StepKey, call: &Call, request: TaskRequest) {
    let does = turn.run.model_loop(number).and_then(|open| open.does(call));
    match does {
        Some(Does::State { op, scope, prefix }) => {
            let asked = op.op(&call.arguments, &prefix);
            schedule_state_call(turn, &key, request, scope.as_deref(), asked);
        }
        Some(Does::Task { .. }) => tasks::schedule_task(turn, key, request),
        None => {
            let failure =
                Failure::new(kind::NOT_FOUND, format!("there is no tool {:?}", call.name));
            let op = StepOp::Task(Box::new(request));
            steps::record(turn, &key, &op, Outcome::Failed(failure));
        }
    }
}

/// A call of a tool that is an operation on state.
fn schedule_state_call(
    turn: &mut Turn<'_>,
    key: &StepKey,
    request: TaskRequest,
    scope: Option<&str>,
    asked: StateOp,
) {
    let op = StepOp::Task(Box::new(request));
    if scope.is_none() && !asked.needs_store() {
        let outcome = match boundary::own_state(turn, &asked) {
            Ok(value) => Outcome::Completed(shown(turn.run, key, value)),
            Err(failure) => Outcome::Failed(failure),
        };
        steps::record(turn, key, &op, outcome);
        return;
    }
    match scoped::permitted(turn, scope, &asked) {
        Err(failure) => steps::record(turn, key, &op, Outcome::Failed(failure)),
        Ok((scope, asked)) => {
            let kind = OpenKind::State { scope, op: Box::new(asked) };
            let number = steps::open(turn, key, &op, kind);
            turn.run.pending.after.performs.push(Perform::State { step: number });
        }
    }
}

/// Lets those go on that waited for others of their batch.
fn release_held(turn: &mut Turn<'_>, number: u32) {
    let Some(key) = turn.run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
        return;
    };
    let Some(open) = turn.run.model_loop_mut(number) else { return };
    let free: Vec<usize> =
        open.held.iter().copied().filter(|place| open.flow.may_start(*place)).collect();
    for place in free {
        let Some(open) = turn.run.model_loop_mut(number) else { return };
        open.held.remove(&place);
        let part = turn.run.chain.find(&part_key(&key, place)).map(|step| step.scheduled.step);
        let Some(part) = part else { continue };
        match turn.run.open.get(part).map(|open| &open.kind) {
            Some(OpenKind::Task(task)) if task.phase == Phase::Capacity => {
                opening::open_attempt(turn, part);
            }
            Some(OpenKind::Loop(_) | OpenKind::Composite(_)) => {
                turn.run.composing.insert(part);
            }
            _ => {}
        }
    }
}
