//! Composites: a task whose members are steps of their own, in scopes below its own.
//!
//! | happens | then |
//! |---|---|
//! | a composite is scheduled | its step opens; its rule says who begins |
//! | a member begins | a step in branch `place` of the composite's own place, with all that a task has |
//! | a member ends | in the same commit the next one begins, or the composite ends |
//! | the composite ends or is canceled | members that are still open are canceled |
//! | the run is read again | what members came to stands in the journal; the rule goes on with it |
//!
//! The flow knows the composite alone: a replay passes its members over.

use crate::{
    engine::{
        run::branches::{is_held, member_key},
        turn::{facts::Turn, limits, loop_parts, steps, tasks},
    },
    fault, flow,
    journal::Outcome,
    protocol::Json,
};

/// Lets every composite go on whose members changed.
pub(crate) fn compose(turn: &mut Turn<'_>) {
    while turn.run.chain.paused().is_none() && !turn.run.is_ended() && !turn.run.reload {
        let Some(number) = turn.run.composing.pop_first() else { return };
        if turn.run.model_loop(number).is_some() {
            loop_parts::loop_one(turn, number);
        } else {
            compose_one(turn, number);
        }
    }
}

fn compose_one(turn: &mut Turn<'_>, number: u32) {
    if is_held(turn.run, number) {
        return;
    }
    while let Some(open) = turn.run.composite_mut(number) {
        match open.composite.rule().turn(&open.course, open.first) {
            flow::CompositeAction::Wait => return,
            flow::CompositeAction::Begin(place) => begin_member(turn, number, place),
            flow::CompositeAction::Complete(place) => {
                let output = open.course.output(place).cloned().unwrap_or_else(Json::null);
                end_composite(turn, number, Outcome::Completed(output));
            }
            flow::CompositeAction::Fail => {
                let failure = open.composite.rule().failure(&open.course, open.composite.members());
                let agent = open.request.agent.clone();
                let failure = failure.at(number, Some(&agent), 1);
                end_composite(turn, number, Outcome::Failed(failure));
            }
        }
    }
}

fn begin_member(turn: &mut Turn<'_>, number: u32, place: usize) {
    if let Some(breach) = limits::breach(turn).or_else(|| limits::task_breach(turn.run)) {
        limits::break_limit(turn, breach);
        return;
    }
    let Some(key) = turn.run.chain.step(number).map(|step| step.scheduled.key.clone()) else {
        return;
    };
    let Some(open) = turn.run.composite_mut(number) else { return };
    open.course.begin(place);
    let Some(request) = open.request_of(place) else { return };
    fault::point("engine.composite_member");
    tasks::schedule_task(turn, member_key(&key, place), request);
}

/// Ends a composite with what its rule says; whoever still works on it is told to stop.
fn end_composite(turn: &mut Turn<'_>, number: u32, outcome: Outcome) {
    let reason = match &outcome {
        Outcome::Completed(_) => "another member's result was taken",
        Outcome::Failed(_) | Outcome::Canceled(_) => "the composite has failed",
    };
    steps::close_members(turn, number, reason);
    steps::finish_step(turn, number, outcome, None, None);
}
