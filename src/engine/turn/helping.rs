//! A run that is driven for another node: what it cannot do here, and when it goes home for that.

use crate::{
    engine::{
        run::{
            loan::{HomeReason, Lent},
            resident::Run,
            task::{OpenTask, Phase},
        },
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
        lent.leave(HomeReason::Needs, now_ms);
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
        lent.leave(HomeReason::Recalled, now_ms);
    }
}

/// Returns true if the attempt of a task is left to the node that drives: for itself, or because the run
/// is to go home.
pub(crate) fn holds_back(turn: &mut Turn<'_>, number: u32) -> bool {
    let Some(lent) = &turn.run.lent else { return false };
    let leaves = match lent.leaves() {
        // It waits for a moment without work, and holds up no work for that.
        Some(u64::MAX) => !is_in_work_beside(turn.run, Some(number)),
        leaves => leaves.is_some(),
    };
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

/// Returns true if a task is not to be executed ahead of its commit: here it is not, or the run leaves.
pub(crate) fn keeps(turn: &Turn<'_>, task: &OpenTask) -> bool {
    turn.run.lent.is_some()
        && (is_leaving(turn.run, turn.steady_ms)
            || !turn.shared.registry.is_portable(&task.operator))
}

/// Returns true if a run goes home as soon as what it has written is stored: its flow takes nothing more.
pub(crate) fn is_leaving(run: &Run, steady_ms: u64) -> bool {
    let leaves = run.lent.as_ref().and_then(Lent::leaves);
    leaves.is_some_and(|at| at <= steady_ms || !is_in_work(run))
}

/// Lets a run go home that cannot be rebuilt here.
pub(crate) fn give_up(turn: &mut Turn<'_>) {
    if let Some(lent) = &mut turn.run.lent {
        lent.leave(HomeReason::Needs, 0);
    }
}

/// Returns true for a command that only the node that drives can carry out.
pub(crate) fn needs_driver(turn: &Turn<'_>, command: &Command) -> bool {
    let Command::Schedule(request) = command else { return false };
    let is_unknown = |name: &String| turn.shared.registry.get(name).is_none();
    turn.run.lent.is_some()
        && match &request.op {
            StepOp::Child { .. } => true,
            StepOp::Task(task) => task.opts.operator.as_ref().is_some_and(is_unknown),
            _ => false,
        }
}

/// Returns true for an operation on shared state whose result is in the memory of the node that drives.
pub(crate) fn needs_driver_for(turn: &Turn<'_>, op: &StateOp) -> bool {
    let StateOp::Set { opts: Some(opts), .. } = op else { return false };
    turn.run.lent.is_some() && opts.hints().lifetime == Some(Lifetime::Transient)
}

/// Returns true if an attempt of a run is in work in this process.
pub(crate) fn is_in_work(run: &Run) -> bool {
    is_in_work_beside(run, None)
}

/// The same, but for that of one step.
fn is_in_work_beside(run: &Run, step: Option<u32>) -> bool {
    let mut tasks = run.open.numbers().filter(|number| step != Some(*number));
    tasks.any(|number| {
        run.task(number).is_some_and(|task| {
            task.residence != Residence::Elsewhere
                && matches!(task.phase, Phase::Pending | Phase::Delivered)
        })
    })
}
