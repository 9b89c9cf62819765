//! Decides a task: refused, run inline, or opened with its first attempt.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    engine::{
        run::{
            due::Due,
            open::Open,
            task::{OpenTask, Phase},
        },
        turn::{
            attempts, budget,
            dispatch::{self, Under},
            facts::Turn,
            helping, opening, prepare, settle, steps, wholes,
        },
    },
    flow::{StepOp, TaskRequest},
    journal::{Outcome, StepKey},
    middleware::Dispatched,
    operator::Residence,
};

/// Decides a task: refuses it, runs it inline, or opens its first attempt.
pub(crate) fn schedule_task(turn: &mut Turn<'_>, key: StepKey, request: TaskRequest) {
    let decided = prepare::prepare(turn, &request)
        .and_then(|task| budget::over_budget(turn, &task).map_or(Ok(task), Err))
        .and_then(|task| wholes::decide(turn, &key, task));
    let op = StepOp::Task(Box::new(request));
    match decided {
        Err(failure) => steps::refuse(turn, &key, &op, failure),
        // What a loop began stands in the journal before any of it is executed.
        Ok(Open::Task(task))
            if task.residence == Residence::Inline
                && task.agent.limit().is_none()
                && task.request.part.is_none()
                && !helping::keeps(turn, &task) =>
        {
            run_inline(turn, &key, &op, *task);
        }
        Ok(task @ Open::Task(_)) => {
            let number = steps::open(turn, &key, &op, task);
            opening::open_attempt(turn, number);
        }
        Ok(whole) => wholes::open(turn, &key, &op, whole),
    }
}

/// Runs in-process work ahead of the commit; what is not ready at once goes on beside the
/// shard.
fn run_inline(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, mut task: OpenTask) {
    let number = turn.run.chain.next_step();
    let Under { live, about, voice, mut future } =
        dispatch::dispatch_future(turn, number, &task, turn.now_ms);
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    settle::take_said(turn, number, voice.hand_over());
    match polled {
        Poll::Ready(Ok(Dispatched::Done(done))) if done.effects.is_empty() => {
            let outcome = attempts::judge(turn.shared, &task, number, done.output);
            if let Outcome::Failed(failure) = &outcome
                && failure.retryable
                && task.retry.max_attempts > 1
            {
                let number = steps::open(turn, key, op, Open::Task(Box::new(task)));
                let Outcome::Failed(failure) = outcome else { return };
                attempts::attempt_over(turn, number, failure, None);
            } else {
                if matches!(outcome, Outcome::Completed(_)) {
                    settle::store(turn.run, key, about.take_promises());
                }
                steps::record(turn, key, op, outcome);
            }
        }
        Poll::Ready(result) => {
            task.promises = about.take_promises();
            task.ran_ms = live.began.elapsed(turn.shared.clock.steady_ms());
            let number = steps::open(turn, key, op, Open::Task(Box::new(task)));
            attempts::finished(turn, number, 1, result);
        }
        Poll::Pending => {
            let began = Arc::clone(&live.began);
            task.live = Some(live);
            task.about = Some(about);
            task.phase = Phase::Delivered;
            let timeout = task.timeout_ms;
            let number = steps::open(turn, key, op, Open::Task(Box::new(task)));
            if let Some(timeout) = timeout {
                turn.run.timers.insert((turn.steady_ms + timeout, number, Due::Attempt));
            }
            dispatch::detach(turn.shared, turn.run.num, (number, 1), &began, future);
        }
    }
}
