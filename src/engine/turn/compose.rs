//! Composites and loops: steps whose parts are steps of their own, in scopes below their own.
//!
//! | happens | then |
//! |---|---|
//! | a composite or a loop is scheduled | its step opens; its driver returns the first commands |
//! | a part begins | it is a step like any other: a task, an operation on state, another whole |
//! | a part ends | in the same commit its driver returns the next commands |
//! | the whole ends or is canceled | parts that are still open are canceled |
//! | the run is read again | the driver replays the ends of its parts from the journal |
//!
//! All parts of a batch are recorded before any of them is executed. The flow knows the whole alone:
//! a replay passes its parts over.

use std::collections::VecDeque;

use crate::{
    engine::{
        run::{
            branches::{is_held, shown},
            driver::{Command, Driver as _, Work},
            open::Open,
            task::Phase,
        },
        turn::{boundary, facts::Turn, limits, opening, scoped, settle, steps, tasks, wholes},
    },
    flow::{StateOp, StepOp, TaskRequest},
    journal::{Outcome, StepKey},
};

/// Lets every composite and loop go on whose parts changed.
pub(crate) fn compose(turn: &mut Turn<'_>) {
    while turn.run.chain.paused().is_none() && !turn.run.is_ended() && !turn.run.reload {
        let Some(number) = turn.run.composing.pop_first() else { return };
        if !is_held(turn.run, number) {
            release_held(turn, number);
            if !wholes::waits_in_line(turn, number) {
                go_on(turn, number);
            }
        }
    }
}

/// Carries out the commands of a driver, until it waits or has ended.
fn go_on(turn: &mut Turn<'_>, number: u32) {
    let mut commands = VecDeque::new();
    while let Some(driver) = turn.run.driver_mut(number) {
        if commands.is_empty() {
            commands.extend(driver.advance());
        }
        match commands.pop_front() {
            None => return,
            Some(Command::Begin(place)) => begin(turn, number, place),
            Some(Command::Tell(event)) => settle::told(turn, Some(number), &event),
            Some(Command::Complete(value)) => wholes::end(turn, number, Ok(value)),
            Some(Command::Stop(stop)) => wholes::end(turn, number, Err(*stop)),
        }
        if turn.run.is_ended() || turn.run.reload {
            return;
        }
    }
}

/// Begins the part at a place.
fn begin(turn: &mut Turn<'_>, number: u32, place: usize) {
    if let Some(breach) = limits::breach(turn).or_else(|| limits::task_breach(turn.run)) {
        limits::break_limit(turn, breach);
        return;
    }
    let own = turn.run.chain.step(number).map(|step| step.scheduled.key.clone());
    let (Some(own), Some(driver)) = (own, turn.run.driver_mut(number)) else { return };
    let key = driver.key_of(&own, place);
    let Some((request, work)) = driver.begin(place) else { return };
    match work {
        Work::Task => tasks::schedule_task(turn, key, request),
        Work::State { scope, op } => begin_state(turn, &key, request, scope.as_deref(), &op),
        Work::Refused(failure) => {
            steps::refuse(turn, &key, &StepOp::Task(Box::new(request)), failure);
        }
    }
}

/// Begins a part that is an operation on state.
fn begin_state(
    turn: &mut Turn<'_>,
    key: &StepKey,
    request: TaskRequest,
    scope: Option<&str>,
    asked: &StateOp,
) {
    let op = StepOp::Task(Box::new(request));
    if scope.is_some() || asked.needs_store() {
        return scoped::open_state(turn, key, &op, scope, asked);
    }
    let outcome = match boundary::own_state(turn, asked) {
        Ok(value) => Outcome::Completed(shown(turn.run, key, value)),
        Err(failure) => Outcome::Failed(failure),
    };
    steps::record(turn, key, &op, outcome);
}

/// Lets those go on that waited for others of their batch.
fn release_held(turn: &mut Turn<'_>, number: u32) {
    let Some(own) = turn.run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
        return;
    };
    let Some(open) = turn.run.model_loop_mut(number) else { return };
    let free: Vec<StepKey> =
        open.release().into_iter().map(|place| open.key_of(&own, place)).collect();
    for key in free {
        let Some(part) = turn.run.chain.find(&key).map(|step| step.scheduled.step) else {
            continue;
        };
        match turn.run.open.get(part) {
            Some(Open::Task(task)) if task.phase == Phase::Capacity => {
                opening::open_attempt(turn, part);
            }
            Some(Open::Loop(_) | Open::Composite(_)) => {
                turn.run.composing.insert(part);
            }
            _ => {}
        }
    }
}
