//! Handles the control of a run: cancel, pause, resume.

use std::collections::BTreeSet;

use crate::{
    engine::{
        EngineError, IdempotencyKey,
        inbox::answers,
        run::{answers::refuse_ended, perform::Perform, reply::Answer, task::Phase},
        turn::{
            ending,
            facts::{self, Turn},
            files, leases, opening, signals, timers, weight,
        },
    },
    fault,
    journal::{Decision, Fact, Outcome, RunState},
    protocol::{Code, Json},
    store::{Check, Write},
};

/// Cancels a run: compensates first, unless it does so already.
pub(crate) fn cancel(
    turn: &mut Turn<'_>,
    by: String,
    jti: Option<String>,
    reason: String,
    key: Option<IdempotencyKey>,
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    turn.run.pending.checks.extend(jti.map(Check::TokenLive));
    if let Some(key) = &key {
        answers::keep_answer(turn, &by, key, "null".into());
    }
    cancel_now(turn, by, reason);
    Ok(Answer::Run)
}

/// Cancels a run on behalf of the run that called it.
///
/// One that is compensating already is left to it: a second cancel would cut that short, and
/// the caller may say so twice.
pub(crate) fn cancel_from(turn: &mut Turn<'_>, sender: (u64, u32), by: String, reason: String) {
    turn.run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
    if *turn.run.chain.state() == RunState::Active {
        cancel_now(turn, by, reason);
    }
}

fn cancel_now(turn: &mut Turn<'_>, by: String, reason: String) {
    fault::point("engine.cancel");
    let decision = Decision::Cancel { by, reason: reason.clone() };
    facts::append(turn, Fact::Decided(decision));
    if turn.run.chain.paused().is_some() {
        // A run that rests has no flow to compensate with until it is replayed.
        facts::append(turn, Fact::Decided(Decision::Resume { by: "cancel".into() }));
    }
    match turn.run.chain.state() {
        RunState::Compensating(ending) => {
            let ending = ending.clone();
            ending::end(turn, ending);
        }
        RunState::Active | RunState::Ended(_) => ending::wind_up(turn, Outcome::Canceled(reason)),
    }
}

/// Stores an artifact that belongs to no task.
pub(crate) fn put_artifact(
    turn: &mut Turn<'_>,
    name: &str,
    data: &[u8],
    jti: Option<String>,
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    weight::check_file(turn, data.len())?;
    let stored = files::put_artifact(turn, (files::OUTSIDE, 0), name, data, true);
    let stored = stored.map_err(answers::bad_request)?;
    turn.run.pending.checks.extend(jti.map(Check::TokenLive));
    Ok(Answer::File(stored))
}

/// Lets a run rest.
pub(crate) fn pause(
    turn: &mut Turn<'_>,
    by: String,
    jti: Option<String>,
    reason: String,
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    if turn.run.chain.paused().is_none() {
        turn.run.pending.checks.extend(jti.map(Check::TokenLive));
        facts::append(turn, Fact::Decided(Decision::Pause { by, reason }));
    }
    Ok(Answer::Run)
}

/// Lets a resting run go on.
pub(crate) fn resume(
    turn: &mut Turn<'_>,
    by: String,
    jti: Option<String>,
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    if turn.run.chain.paused().is_some() {
        turn.run.pending.checks.extend(jti.map(Check::TokenLive));
        facts::append(turn, Fact::Decided(Decision::Resume { by }));
        // Results that came meanwhile are in the journal: the replay hands them to the flow.
        // Workers in the host are kept: the replay would take them for dead.
        if turn.run.flow.is_some() {
            wake_after_pause(turn);
        } else {
            turn.run.reload = true;
        }
    }
    Ok(Answer::Run)
}

/// Goes on where a pause held a run back that is still in memory.
fn wake_after_pause(turn: &mut Turn<'_>) {
    let open: Vec<u32> = turn.run.chain.open().collect();
    for number in open {
        let Some(task) = turn.run.task(number) else { continue };
        match task.phase {
            Phase::Capacity => opening::open_attempt(turn, number),
            Phase::Pending if task.live.is_none() => {
                let attempt = task.attempt;
                turn.run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
            }
            Phase::Pending => leases::offer_again(turn.shared, task, turn.run.num, number),
            Phase::Delivered | Phase::Retry => {}
        }
    }
    let names: BTreeSet<String> =
        turn.run.chain.signals().into_iter().map(|(name, _)| name).collect();
    for name in names {
        signals::match_signal(turn, &name);
    }
    timers::wake(turn);
}

/// Asks one of the run's query functions.
pub(crate) fn query(
    turn: &mut Turn<'_>,
    name: &str,
    argument: &Json,
) -> Result<Answer, EngineError> {
    match turn.run.flow.as_mut() {
        Some(flow) => flow.query(name, argument).map(Answer::Json).map_err(EngineError::Flow),
        None => Err(EngineError::Conflict {
            code: Code::RunPaused,
            message: format!("query {name:?}: the run's flow cannot be replayed now"),
        }),
    }
}
