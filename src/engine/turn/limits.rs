//! Enforces the limits of a run on steps, entries and tasks. A breach ends the run; what it defers
//! has room beyond them.

use crate::{
    engine::{
        run::{
            account::{ROW, STEP},
            resident::Run,
        },
        turn::{ending, facts::Turn},
    },
    journal::{Outcome, RunState},
    protocol::{Failure, failure::kind},
};

/// Returns the effective value of a limit of the host. What a run defers may take a quarter more:
/// it ends the run in order.
fn spared(run: &Run, most: u64) -> u64 {
    match run.chain.state() {
        RunState::Active => most,
        RunState::Compensating(_) | RunState::Ended(_) => most.saturating_add(most / 4),
    }
}

/// Returns the reason why a run's history may not grow, if there is one.
pub(crate) fn long_history(turn: &Turn<'_>) -> Option<String> {
    let most = turn.shared.settings.limits.entries;
    (u64::from(turn.run.chain.entries()) >= spared(turn.run, most.into()))
        .then(|| format!("more than {most} entries in one history; use ctx:continue_as"))
}

/// Returns the reason why a run may hold no more, if there is one.
fn overweight(turn: &Turn<'_>) -> Option<String> {
    let limits = &turn.shared.settings.limits;
    let is_ending = *turn.run.chain.state() != RunState::Active;
    let spare = |most: u64| spared(turn.run, most);
    if turn.run.account.over.is_some() && !is_ending {
        return turn.run.account.over.clone();
    }
    let held = turn.run.held();
    let over = |bytes: usize, most: usize| bytes as u64 > spare(most as u64);
    if over(held.total(), turn.run.account.most) || over(held.state, turn.run.account.most_state) {
        return Some(format!(
            "it holds {} bytes in memory, {} are allowed; most of it is {}",
            held.total(),
            turn.run.account.most,
            held.most()
        ));
    }
    if turn.run.chain.history_bytes() > spare(limits.history) {
        return Some(format!(
            "more than {} bytes in one history; use ctx:continue_as",
            limits.history
        ));
    }
    if turn.run.header.bytes > spare(limits.stored) {
        return Some(format!(
            "it stores {} bytes, {} are allowed: its histories, its state and its files",
            turn.run.header.bytes, limits.stored
        ));
    }
    None
}

/// Returns the reason why a run may have no further step, if there is one.
pub(crate) fn breach(turn: &Turn<'_>) -> Option<String> {
    let limits = &turn.shared.settings.limits;
    let (steps, _) = turn.run.chain.counts();
    // What a run defers is held to the host's limit alone, and to its time.
    let is_active = *turn.run.chain.state() == RunState::Active;
    let program = turn.run.program.as_ref().filter(|_| is_active);
    let max_steps = program
        .and_then(|program| program.blueprint().definition().max_steps)
        .map_or(limits.steps, |steps| steps.min(limits.steps));
    let open = limits.open_steps;
    match long_history(turn).or_else(|| overweight(turn)) {
        Some(breach) => Some(breach),
        None if u64::from(steps) >= spared(turn.run, max_steps.into()) => {
            Some(format!("more than {max_steps} steps in one history"))
        }
        None if turn.run.open.len() >= open as usize => {
            Some(format!("more than {open} steps open at the same time"))
        }
        None => None,
    }
}

/// Returns the reason why a run may have no further task, if there is one.
pub(crate) fn task_breach(run: &Run) -> Option<String> {
    let most = run.program.as_ref()?.blueprint().definition().max_open_tasks?;
    (run.open.sums().tasks >= most as usize)
        .then(|| format!("more than {most} tasks open at the same time"))
}

/// Ends a run that broke a limit.
pub(crate) fn break_limit(turn: &mut Turn<'_>, message: String) {
    let ending = Outcome::Failed(Failure::new(kind::LIMIT, message));
    match turn.run.chain.state() {
        RunState::Compensating(ending) => {
            let ending = ending.clone();
            ending::end(turn, ending);
        }
        RunState::Active | RunState::Ended(_) => ending::wind_up(turn, ending),
    }
}

/// Counts a run as what it holds now, and ends it if that is too much.
pub(crate) fn weigh(turn: &mut Turn<'_>) {
    if !turn.run.is_ended()
        && turn.run.chain.paused().is_none()
        && let Some(breach) = overweight(turn)
    {
        break_limit(turn, breach);
    }
    let (steps, _) = turn.run.chain.counts();
    let bytes = turn.run.held().total() + turn.run.writing() + steps as usize * STEP + ROW;
    turn.run.account.share.set(bytes);
}
