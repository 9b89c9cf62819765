//! Decides a task: refused, run inline, or opened with its first attempt.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    engine::{
        run::{
            due::Due,
            open::OpenKind,
            task::{OpenTask, Phase},
        },
        turn::{
            attempts, budget, composites,
            dispatch::{self, Under},
            facts::Turn,
            loops, opening, prepare, settle, steps,
        },
    },
    flow::{StepOp, TaskRequest},
    journal::{Outcome, StepKey},
    middleware::Dispatched,
    operator::Residence,
};

/// Decides a task: refuses it, runs it inline, or opens its first attempt.
pub(crate) fn schedule_task(turn: &mut Turn<'_>, key: StepKey, request: TaskRequest) {
    let prepared = prepare::prepare(turn, &request)
        .and_then(|task| budget::over_budget(turn, &task).map_or(Ok(task), Err));
    let op = StepOp::Task(Box::new(request));
    match prepared {
        Err(failure) => {
            let step = turn.run.chain.next_step();
            let agent = op.name().to_owned();
            let failure = failure.at(step, Some(&agent), 1);
            steps::record(turn, &key, &op, Outcome::Failed(failure));
        }
        Ok(task) if loops::is_loop(turn.shared, &task) => {
            loops::schedule_loop(turn, &key, &op, task);
        }
        Ok(task) if let Some(composite) = composites::composite(turn.shared, &task) => {
            match composites::may_compose(turn.run, &key, &task.operator) {
                Ok(()) => composites::schedule_composite(turn, &key, &op, task, composite),
                Err(failure) => {
                    let (step, agent) = (turn.run.chain.next_step(), op.name().to_owned());
                    let failure = failure.at(step, Some(&agent), 1);
                    steps::record(turn, &key, &op, Outcome::Failed(failure));
                }
            }
        }
        // What a loop began stands in the journal before any of it is executed.
        Ok(task)
            if task.residence == Residence::Inline
                && task.agent.limit().is_none()
                && task.request.part.is_none() =>
        {
            run_inline(turn, &key, &op, task);
        }
        Ok(task) => {
            let number = steps::open(turn, &key, &op, OpenKind::Task(Box::new(task)));
            opening::open_attempt(turn, number);
        }
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
                let number = steps::open(turn, key, op, OpenKind::Task(Box::new(task)));
                let Outcome::Failed(failure) = outcome else { return };
                attempts::attempt_failed(turn, number, failure, None);
            } else {
                steps::record(turn, key, op, outcome);
            }
        }
        Poll::Ready(result) => {
            let number = steps::open(turn, key, op, OpenKind::Task(Box::new(task)));
            attempts::finished(turn, number, 1, result);
        }
        Poll::Pending => {
            let began = Arc::clone(&live.began);
            task.live = Some(live);
            task.about = Some(about);
            task.phase = Phase::Delivered;
            let timeout = task.timeout_ms;
            let number = steps::open(turn, key, op, OpenKind::Task(Box::new(task)));
            if let Some(timeout) = timeout {
                turn.run.timers.insert((turn.steady_ms + timeout, number, Due::Attempt));
            }
            dispatch::detach(turn.shared, turn.run.num, (number, 1), &began, future);
        }
    }
}
