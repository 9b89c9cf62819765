//! Attempts: from a scheduled task to the one result that counts.
//!
//! | happens | the attempt | then |
//! |---|---|---|
//! | scheduled | opens | waits for a place, runs inline, or is dispatched after the commit |
//! | delivered | its timeout begins | |
//! | done | ends its step | the flow goes on |
//! | failed, more allowed | closes | the next opens after the pause |
//! | failed, no more | ends its step | the flow receives the failure |
//! | interrupted | closes, uncounted | the next opens at once |
//! | silent past the agent's lease | closes, counted | the next opens after the pause |

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            due::Due,
            task::{OpenTask, Phase},
            values,
        },
        shared::shards::Shared,
        turn::{
            counting, effects,
            facts::{self, Turn},
            files, follow, leases, opening,
            pause::{pause_ms, retry_after_ms},
            places, settle, steps,
        },
    },
    fault::{self, Break},
    journal::{AttemptClosed, Fact, Outcome, Usage},
    middleware::{Dispatched, Settled, Short, TaskDone, skips},
    operator::Residence,
    protocol::{Effect, Failure, Json, failure::kind},
};

/// A dispatched attempt came to its end, or went to somebody else.
pub(crate) fn finished(
    turn: &mut Turn<'_>,
    number: u32,
    attempt: u32,
    result: Result<Dispatched, Failure>,
) {
    if let Ok(Dispatched::Done(done)) = &result
        && fault::is_broken(Break::ApplyEffectsAtDispatch)
    {
        drop(effects::apply_effects(turn, number, &done.effects));
    }
    let Some(task) = turn.run.task_mut(number) else { return };
    if task.attempt != attempt || task.phase == Phase::Retry {
        return;
    }
    fault::point("engine.finished");
    // The layers left it to a report, and that was refused.
    let is_open = task.about.as_ref().is_some_and(|about| about.is_over());
    if !is_open && !matches!(result, Ok(Dispatched::Parked)) {
        // The layers have settled it on the way back.
        let about = task.about.take();
        task.promises.extend(about.iter().flat_map(|about| about.take_promises()));
        task.allowed = about.and_then(|about| about.allowed());
    }
    match result {
        Ok(Dispatched::Done(done)) if is_open => settled(turn, number, Ok(done)),
        Ok(Dispatched::Short(short)) if is_open => settled(turn, number, Err(short)),
        Err(failure) if is_open => attempt_failed(turn, number, failure, None),
        Ok(Dispatched::Done(done)) => returned(turn, number, done),
        Ok(Dispatched::Short(short)) => fell_short(turn, number, *short),
        Ok(Dispatched::Parked) if task.residence == Residence::Elsewhere => {
            // Every layer has let it pass: now a pull worker may have it.
            task.again = true;
            leases::passed(turn, number, attempt);
        }
        Ok(Dispatched::Parked) => {
            // Whoever ran in the host left without a result and without having reported one.
            task.live = None;
            let failure = Failure::new(kind::WORKER, "the worker left without a result");
            attempt_failed(turn, number, failure, None);
        }
        Err(failure) => attempt_over(turn, number, failure, None),
    }
}

/// Settles what an operator returned, in place of its dispatch.
fn settled(turn: &mut Turn<'_>, number: u32, outcome: Settled) {
    match settle::settle(turn, number, outcome) {
        Ok(done) => returned(turn, number, done),
        Err(short) => fell_short(turn, number, *short),
    }
}

fn returned(turn: &mut Turn<'_>, number: u32, done: TaskDone) {
    let Some(task) = turn.run.task(number) else { return };
    let attempt = task.attempt;
    if follow::is_followed(turn.run, number, &done.effects) {
        return follow::done_followed(turn, number, done);
    }
    let judged = match skips(&done.effects) {
        true => Outcome::Completed(Json::null()),
        false => judge(turn.shared, task, number, done.output),
    };
    match judged {
        Outcome::Completed(output) => {
            let effects = match effects::apply_effects(turn, number, &done.effects) {
                Ok(effects) => effects,
                Err(failure) => {
                    let outcome = Outcome::Failed(settle::located(turn.run, number, failure));
                    steps::finish_step(turn, number, outcome, None, done.usage);
                    return;
                }
            };
            settle::accepted(turn.run, number);
            // A child may have sent files and left its result to its return.
            files::publish(turn.run, number, attempt);
            steps::finish_step(turn, number, Outcome::Completed(output), effects, done.usage);
        }
        Outcome::Failed(failure) => attempt_over(turn, number, failure, done.usage),
        Outcome::Canceled(_) => {}
    }
}

/// Returns true if an operator's own return fits the agent's schema.
pub(crate) fn judge(shared: &Arc<Shared>, task: &OpenTask, number: u32, output: Json) -> Outcome {
    if output.len() > shared.settings.limits.value {
        let message = format!("the result has {} bytes", output.len());
        let failure = Failure::new(kind::LIMIT, message);
        return Outcome::Failed(failure.at(number, Some(task.agent.name()), task.attempt));
    }
    match values::fitting(&task.agent, &output) {
        Ok(output) => Outcome::Completed(output),
        Err(failure) => Outcome::Failed(failure.at(number, Some(task.agent.name()), task.attempt)),
    }
}

/// Fails an attempt whose failure has not passed the layers yet. A layer may have an answer instead.
pub(crate) fn attempt_failed(
    turn: &mut Turn<'_>,
    number: u32,
    failure: Failure,
    usage: Option<Usage>,
) {
    let short = Box::new(Short { failure, usage, effects: Vec::new() });
    match settle::settle(turn, number, Err(short)) {
        Err(short) => attempt_over(turn, number, short.failure, short.usage),
        Ok(done) => returned(turn, number, done),
    }
}

/// The lease of an attempt has run out. The one of a host's pull worker is as if the host had
/// stopped; one that the agent sets counts, so that a worker that takes a task and falls silent
/// again and again comes to an end.
pub(crate) fn lease_over(turn: &mut Turn<'_>, number: u32) {
    let Some(task) = turn.run.task_mut(number) else { return };
    let failure = match task.own_lease_ms() {
        None => Failure::new(kind::INTERRUPTED, "the worker's lease ran out"),
        Some(lease) => {
            task.is_silent = true;
            let message = format!("the worker was silent for longer than its lease of {lease} ms");
            Failure::new(kind::TIMEOUT, message)
        }
    };
    attempt_failed(turn, number, failure.retryable(), None);
}

/// Closes an attempt whose failure has passed the layers: another attempt follows, or the step
/// fails.
pub(crate) fn attempt_over(
    turn: &mut Turn<'_>,
    number: u32,
    failure: Failure,
    usage: Option<Usage>,
) {
    let failure = settle::located(turn.run, number, failure);
    let now = facts::time_of(turn);
    let seed = turn.run.chain.started().map_or(0, |(started, _)| started.seed);
    let Some(task) = turn.run.task(number) else { return };
    let interrupted = failure.is(kind::INTERRUPTED);
    let counted = task.counted + u32::from(!interrupted);
    let again = failure.retryable
        && if interrupted { !task.retry.fail_on_interrupt } else { counted < task.most_attempts() };
    if !again || turn.run.is_ended() {
        steps::finish_step(turn, number, Outcome::Failed(failure), None, usage);
        return;
    }
    let pause = if interrupted {
        0
    } else {
        // An operator that says when it can take work again is asked then, within the longest pause.
        let asked = retry_after_ms(&failure).min(task.retry.max_ms);
        pause_ms(&task.retry, counted, seed, number).max(asked)
    };
    let attempt = task.attempt;
    places::leave(turn, number, &failure.message);
    let run = (&mut *turn.run, &turn.shared.registry);
    counting::close(run, number, &failure, usage.as_ref());
    facts::append(
        turn,
        Fact::AttemptClosed(Box::new(AttemptClosed {
            step: number,
            attempt,
            error: failure,
            usage,
            retry_at_ms: now + pause,
            counts: !interrupted,
        })),
    );
    if let Some(task) = turn.run.task_mut(number) {
        task.counted = counted;
        task.phase = Phase::Retry;
    }
    if pause == 0 {
        opening::next_attempt(turn, number);
    } else {
        turn.run.timers.insert((now + pause, number, Due::Retry));
    }
}

/// An execution ended before its task was done. What it wants done is done with the step's
/// end; a further attempt would want it again, so it is dropped with the attempt.
fn fell_short(turn: &mut Turn<'_>, number: u32, short: Short) {
    let Short { failure, usage, effects } = short;
    if effects.iter().any(|it| matches!(it, Effect::ToolApprovalRequired { .. })) {
        // It did not fall short: it waits for a person, and goes on then.
        return returned(turn, number, TaskDone { output: Json::null(), usage, effects });
    }
    let retries = |task: &OpenTask| failure.retryable && task.counted + 1 < task.retry.max_attempts;
    if effects.is_empty() || turn.run.task(number).is_some_and(retries) {
        attempt_over(turn, number, failure, usage);
        return;
    }
    let failure = settle::located(turn.run, number, failure);
    let (failure, effects) = match effects::apply_effects(turn, number, &effects) {
        Ok(effects) => (failure, effects),
        Err(refused) => (settle::located(turn.run, number, refused), None),
    };
    steps::finish_step(turn, number, Outcome::Failed(failure), effects, usage);
}
