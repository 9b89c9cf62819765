//! The end of a run: its output is checked, open steps are closed, deferred functions run, or a
//! fresh history begins.

use std::sync::Arc;

use crate::{
    engine::{
        run::{due::Due, perform::Perform},
        turn::{
            batch,
            facts::{self, Turn},
            lineage, replay, steps,
        },
    },
    fault,
    flow::{Input, NextAction},
    journal::{Additions, Decision, Ending, Fact, Outcome, RunState, SeatHolder, Tally},
    protocol::{Failure, Json, failure::kind},
    schema,
    store::{CountedRun, Write},
};

pub(crate) fn complete(turn: &mut Turn<'_>, output: &Json) {
    let schema = turn.run.program.as_ref().map(|program| program.blueprint().output().clone());
    let accepted = match schema {
        Some(schema) if !schema.is_any() => schema.accept(output.to_value()).map(Json::from),
        _ => Ok(output.clone()),
    };
    match accepted {
        Ok(output) => end(turn, Outcome::Completed(output)),
        Err(violations) => {
            let what = schema::first_of(&violations);
            let message = format!("the output does not match its schema{what}");
            wind_up(turn, Outcome::Failed(Failure::new(kind::INVALID_RESULT, message)));
        }
    }
}

/// Inputs that a flow takes in the turn that stops it.
const WIND_UP: usize = 256;

/// Time that it has for that, in milliseconds.
const WIND_UP_MS: u64 = 50;

/// Closes what is open; then runs the compensations, if there are any, and ends the run.
pub(crate) fn wind_up(turn: &mut Turn<'_>, ending: Outcome) {
    let reason = match &ending {
        Outcome::Completed(_) => "the run completed",
        Outcome::Failed(_) => "the run failed",
        Outcome::Canceled(_) => "the run was canceled",
    };
    let is_whole = take_all(turn);
    steps::close_all(turn, reason);
    turn.run.inbox.clear();
    turn.run.lookups.drop_rest();
    let compensates = *turn.run.chain.state() == RunState::Active
        && (!is_whole || turn.run.flow.as_ref().is_some_and(|flow| flow.has_defers()));
    if compensates {
        fault::point("engine.compensate");
        facts::append(turn, Fact::Decided(Decision::Compensate { ending }));
        let at_ms = turn.run.chain.last_ms();
        let due = turn.steady_ms + turn.shared.settings.compensation_ms;
        // The timer of the wall limit goes too: what is deferred has a time of its own.
        turn.run.timers.clear();
        turn.run.timers.insert((due, 0, Due::Compensation));
        turn.run.inbox.push_back((Input::Compensate, at_ms));
    } else {
        end(turn, ending);
    }
}

/// Lets a flow that is stopped take its inputs to their end, as a replay will: results that were
/// accepted are in the journal, whether the flow saw them or not. What it requests there is never
/// decided. Returns false if the run must be read again for that, or there is too much for one turn:
/// a cancel does not wait.
fn take_all(turn: &mut Turn<'_>) -> bool {
    let clock = &turn.shared.clock;
    let (began, run) = (clock.steady_ms(), &mut *turn.run);
    let Some(flow) = run.flow.as_mut() else { return !run.reload };
    if let Some((Input::Start, _)) = run.inbox.front() {
        return true;
    }
    let mut taken = 0;
    while let Some((input, at_ms)) = run.inbox.pop_front() {
        taken += 1;
        if taken > WIND_UP || clock.steady_ms().saturating_sub(began) > WIND_UP_MS {
            run.flow = None;
            run.reload = true;
            return false;
        }
        let mut next = flow.advance(input, at_ms).next;
        while next == NextAction::More {
            next = flow.advance(Input::More, at_ms).next;
        }
        if let NextAction::Broken(_) = next {
            run.flow = None;
            run.reload = true;
            run.broken = true;
            return false;
        }
    }
    true
}

/// Ends a run for ever.
pub(crate) fn end(turn: &mut Turn<'_>, outcome: Outcome) {
    fault::point("engine.end");
    steps::close_all(turn, "the run ended");
    let ending = (&outcome).into();
    facts::append(turn, Fact::RunEnded(outcome));
    count(turn, ending, turn.run.chain.tally().clone());
    turn.run.inbox.clear();
    turn.run.lookups.drop_rest();
    turn.run.timers.clear();
    turn.run.flow = None;
    turn.run.pending.writes.push(Write::CloseTasks { run: turn.run.num });
    if turn.run.header.parent.is_some() {
        turn.run.pending.after.performs.push(Perform::TellParent);
    }
}

/// Counts the history that ends for the statistics of the host.
fn count(turn: &mut Turn<'_>, ending: Ending, tally: Tally) {
    turn.run.pending.writes.push(Write::CountRun(Box::new(CountedRun {
        run: turn.run.num,
        created_ms: turn.run.header.created_ms,
        ended_ms: facts::time_of(turn),
        blueprint: turn.run.header.blueprint.clone(),
        ending,
        tally,
    })));
}

pub(crate) fn continue_as(turn: &mut Turn<'_>, input: Json) {
    let Some((started, _)) = turn.run.chain.started() else { return };
    let mut started = started.clone();
    if let Some(program) = &turn.run.program {
        match program.blueprint().input().accept(input.to_value()) {
            Ok(accepted) => started.input = accepted.into(),
            Err(violations) => {
                let what = schema::first_of(&violations);
                let message = format!("continue_as: the input does not match its schema{what}");
                wind_up(turn, Outcome::Failed(Failure::new(kind::INVALID_INPUT, message)));
                return;
            }
        }
    }
    steps::close_all(turn, "the run began a fresh history");
    let signals = turn.run.chain.signals();
    let (seats, spent) = (turn.run.chain.seats().clone(), turn.run.chain.spent().clone());
    let joined = crate::engine::turn::lineage::all_of(&turn.shared.sessions, turn.run);
    started.generation += 1;
    started.first_step = turn.run.chain.next_step();
    started.queued = signals;
    started.seed = started.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    // What waits for no batch of its own waits for that of the fresh history.
    let put_off = batch::submit(turn);
    turn.run.pending.after.extend(put_off);
    started.continues = Some(turn.run.chain.seq().into());
    // It begins once its start is durable, with a turn of its own: a run that does nothing but
    // begin anew takes no more than others, receives its cancel, and leaves nothing behind.
    turn.run.fresh_after = Some(turn.run.batches + 1);
    turn.run.inbox.clear();
    turn.run.timers.keep(Due::Wall);
    // In the commit that begins the fresh history, so that none is counted twice.
    let tally = turn.run.chain.tally().clone();
    let mut additions = Additions::of_tags(turn.run.chain.tags());
    if let Some(trace) = turn.run.chain.trace() {
        additions.put_trace(trace);
    }
    facts::append_with(turn, Fact::RunStarted(Box::new(started)), additions);
    if !tally.is_empty() {
        count(turn, Ending::Open, tally);
    }
    if !spent.is_empty() {
        facts::append(turn, Fact::Decided(Decision::Spent(Box::new(spent))));
    }
    for (session, party) in joined {
        lineage::join(turn, session, party);
    }
    for (operator, held) in seats {
        let SeatHolder { session, epoch } = held;
        let by = "continue_as".to_owned();
        facts::append(turn, Fact::Decided(Decision::Seat { by, operator, session, epoch }));
    }
    start_flow(turn);
}

/// Puts a fresh flow under a run and hands it its start.
pub(crate) fn start_flow(turn: &mut Turn<'_>) {
    let Some(program) = turn.run.program.as_ref().map(Arc::clone) else { return };
    match replay::new_flow(turn, &program) {
        Ok(flow) => {
            turn.run.flow = Some(flow);
            let at_ms = turn.run.chain.last_ms();
            turn.run.inbox.push_back((Input::Start, at_ms));
        }
        Err(failure) => end(turn, Outcome::Failed(failure)),
    }
}
