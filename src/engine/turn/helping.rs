//! A run that is driven for another node: what it cannot do here, and when it goes home for that.

use crate::{
    engine::{
        run::{loan::Why, open::Open, resident::Run, task::Phase},
        shared::lent::Patience,
        turn::facts::Turn,
    },
    flow::{Command, StateOp, StepOp},
    operator::Residence,
    protocol::Lifetime,
};

/// The time that attempts have to end before a run leaves although they are in work, in milliseconds.
const PATIENCE_MS: u64 = 10_000;
/// The same where somebody waits for an answer.
const SHORT_MS: u64 = 2_000;

/// Lets a run of another node go home, for something that only its node has.
pub(crate) fn leave(turn: &mut Turn<'_>) {
    let now_ms = turn.steady_ms + PATIENCE_MS;
    if let Some(lent) = &mut turn.run.lent {
        lent.leave(Why::Needs, now_ms);
    }
}

/// Lets a run go home because its node asked for it.
pub(crate) fn recalled(turn: &mut Turn<'_>, patience: Patience) {
    let now_ms = match patience {
        Patience::None => 0,
        Patience::Short => turn.steady_ms + SHORT_MS,
        Patience::Endless => u64::MAX,
    };
    if let Some(lent) = &mut turn.run.lent {
        lent.leave(Why::Recalled, now_ms);
    }
}

/// Returns true if the attempt of a task is left to the node that drives: for itself, or because the run
/// is to go home.
pub(crate) fn holds_back(turn: &mut Turn<'_>, number: u32) -> bool {
    let Some(lent) = &turn.run.lent else { return false };
    let leaves = lent.leaves().is_some();
    let Some(task) = turn.run.task(number) else { return false };
    let is_portable = task.residence != Residence::Elsewhere
        && task.agent.limit().is_none()
        // It may leave at any moment, which would be its end.
        && !task.retry.fail_on_interrupt
        && turn.shared.registry.is_portable(&task.operator);
    if !is_portable {
        leave(turn);
    }
    leaves || !is_portable
}

/// Returns true if a run goes home as soon as what it has written is stored: its flow takes nothing more.
pub(crate) fn is_leaving(turn: &Turn<'_>) -> bool {
    turn.run.lent.as_ref().is_some_and(|lent| lent.is_leaving(turn.steady_ms))
}

/// Returns true for a command that only the node that drives can carry out.
pub(crate) fn needs_driver(turn: &Turn<'_>, command: &Command) -> bool {
    let Command::Schedule(request) = command else { return false };
    turn.run.lent.is_some() && matches!(request.op, StepOp::Child { .. })
}

/// Returns true for an operation on shared state whose result is in the memory of the node that drives.
pub(crate) fn needs_driver_for(turn: &Turn<'_>, op: &StateOp) -> bool {
    let StateOp::Set { opts: Some(opts), .. } = op else { return false };
    turn.run.lent.is_some() && opts.hints().lifetime == Some(Lifetime::Transient)
}

/// Returns true if an attempt of a run is in work in this process.
pub(crate) fn is_in_work(run: &Run) -> bool {
    run.open.values().any(|open| match open {
        Open::Task(task) => {
            task.residence != Residence::Elsewhere
                && matches!(task.phase, Phase::Pending | Phase::Delivered)
        }
        _ => false,
    })
}
