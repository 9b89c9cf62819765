//! Advancing a flow: its inputs one after the other, its commands into facts.

use crate::{
    engine::{
        run::{lookups::Rest, resident::Run},
        turn::{
            compose, ending,
            facts::{self, Turn},
            helping, limits, lookups, schedule, steps, weight,
        },
    },
    flow::{Command, Input, NextAction, StepOp},
    journal::{Fact, Outcome, RunState},
};

/// Inputs that a run takes in one turn before its neighbours get theirs.
const TURN: usize = 256;

/// Time that a run takes for one turn, if its inputs are fewer, in milliseconds. What it does with
/// one input is not interrupted: that is bounded by its limit of processor time.
pub(crate) const TURN_MS: u64 = 5;

/// Bytes that a run writes in one turn, if its inputs are fewer.
const TURN_BYTES: usize = 256 * 1024;

/// Lets the flow take its inputs, as many as one turn allows. Says whether it waits for room in
/// the host's memory.
pub(crate) fn drive(turn: &mut Turn<'_>) -> bool {
    let began = turn.shared.clock.steady_ms();
    hold_to_quotas(turn);
    let parks = take_inputs(turn, began);
    // Whatever the last input asked for begins in the same commit.
    compose::compose(turn);
    parks
}

/// Ends a run that would go on although the runs under its token keep more than they may.
fn hold_to_quotas(turn: &mut Turn<'_>) {
    if turn.run.charged
        && !turn.run.inbox.is_empty()
        && turn.run.chain.paused().is_none()
        && *turn.run.chain.state() == RunState::Active
        && let Some(exceeded) = turn.shared.accounts.over_bytes(turn.run.num)
    {
        ending::wind_up(turn, Outcome::Failed(exceeded.failure()));
    }
}

/// Returns true if it stopped for lack of memory.
fn take_inputs(turn: &mut Turn<'_>, began: u64) -> bool {
    for taken in 0..TURN {
        if taken > 0
            && (turn.shared.clock.steady_ms().saturating_sub(began) >= TURN_MS
                || turn.run.pending.bytes() >= TURN_BYTES)
        {
            return false;
        }
        if turn.run.chain.paused().is_some() || turn.run.is_ended() || turn.run.reload {
            return false;
        }
        if turn.run.lookups.is_waiting || helping::is_leaving(turn.run, turn.steady_ms) {
            return false;
        }
        if let Some(Rest { commands, next }) = lookups::take_rest(turn) {
            go_on(turn, commands, next);
            continue;
        }
        compose::compose(turn);
        if turn.run.waits_for_commit() || turn.run.inbox.is_empty() {
            return false;
        }
        if weight::parks(turn) {
            return true;
        }
        let Some((input, at_ms)) = turn.run.inbox.pop_front() else { return false };
        let Some(flow) = turn.run.flow.as_mut() else { return false };
        let advance = flow.advance(input, at_ms);
        if advance.next == NextAction::More {
            turn.run.inbox.push_front((Input::More, at_ms));
        }
        go_on(turn, advance.commands, advance.next);
    }
    false
}

/// Carries out what a flow asked for, in its order, then its next action. It stops at a command that
/// stopped the flow, by a limit that it broke: the rest was never decided then. It waits at one that
/// needs a read.
pub(crate) fn go_on(turn: &mut Turn<'_>, commands: Vec<Command>, action: NextAction) {
    let before = compensates(turn.run);
    let mut commands = commands.into_iter();
    while let Some(command) = commands.next() {
        if lookups::lacks(turn, &command) {
            let rest = std::iter::once(command).chain(commands).collect();
            return lookups::wait(turn, rest, action);
        }
        carry_out(turn, command);
        if turn.run.is_ended() || turn.run.reload || compensates(turn.run) != before {
            return lookups::forget(turn);
        }
    }
    lookups::forget(turn);
    next(turn, action);
}

/// Applies the next action of a flow to its run.
///
/// | next | active | compensating |
/// |---|---|---|
/// | wait, more | wait | wait |
/// | complete | ends completed, if the output fits its schema | ends as it was to end |
/// | fail | compensates, or ends failed | ends as it was to end |
/// | continue | a fresh history | ends as it was to end |
/// | limit | compensates, or ends failed | ends as it was to end |
/// | broken | read again | read again |
fn next(turn: &mut Turn<'_>, next: NextAction) {
    let ending = match turn.run.chain.state() {
        RunState::Compensating(ending) => Some(ending.clone()),
        RunState::Active | RunState::Ended(_) => None,
    };
    match (next, ending) {
        (NextAction::Wait | NextAction::More, _) => {}
        (NextAction::Broken(reason), _) => {
            tracing::info!(run = %turn.run.id, reason, "the run's VM had no room; it is replayed");
            turn.run.flow = None;
            turn.run.reload = true;
            turn.run.broken = true;
        }
        (NextAction::Complete(output), None) => ending::complete(turn, &output),
        (NextAction::Fail(failure) | NextAction::Limit(failure), None) => {
            ending::wind_up(turn, Outcome::Failed(failure));
        }
        (NextAction::ContinueAs(input), None) => ending::continue_as(turn, input),
        (
            NextAction::Complete(_)
            | NextAction::Fail(_)
            | NextAction::Limit(_)
            | NextAction::ContinueAs(_),
            Some(ending),
        ) => ending::end(turn, ending),
    }
}

/// Turns one command of the flow into facts.
fn carry_out(turn: &mut Turn<'_>, command: Command) {
    match command {
        Command::CancelScope(scope) => steps::cancel_scope(turn, &scope),
        Command::Note { key, note } => match limits::long_history(turn) {
            Some(breach) => limits::break_limit(turn, breach),
            None => facts::append(turn, Fact::Noted { key, note }),
        },
        Command::Schedule(request) => match limits::breach(turn).or_else(|| match request.op {
            StepOp::Task(_) => limits::task_breach(turn.run),
            _ => None,
        }) {
            Some(breach) => limits::break_limit(turn, breach),
            None => schedule::schedule(turn, request),
        },
    }
}

fn compensates(run: &Run) -> bool {
    matches!(run.chain.state(), RunState::Compensating(_))
}
