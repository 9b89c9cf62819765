//! Follow-ups: what a result leaves to others before its step ends.
//!
//! | the result declares | then |
//! |---|---|
//! | delegate | another operator executes; its result goes to the flow |
//! | handoff | another operator goes on from a little state; its result is the step's |
//! | tool approval | a person is asked, and the operator goes on with the answer |
//!
//! Each is a further attempt of the same step, first in first out; the journal keeps what is left.
//! One delegate's result is the step's value, several make a list in their order.

use std::sync::Arc;

use crate::{
    blueprint::CompiledAgent,
    engine::{
        run::{
            follows::{Follow, Follows, Why, is_follow},
            resident::Run,
            values,
        },
        turn::{
            counting, effects,
            facts::{self, Turn},
            files, opening, places, settle, steps,
        },
    },
    fault,
    journal::{Decision, Fact, Followed, Outcome, Usage},
    middleware::TaskDone,
    protocol::{Effect, Failure, Json, failure::kind},
};

/// Returns true if a result is one of a step that leaves, or has left, something to others.
pub(crate) fn is_followed(run: &Run, number: u32, effects: &[Effect]) -> bool {
    effects.iter().any(is_follow) || run.task(number).is_some_and(|task| task.follows.is_some())
}

/// Takes such a result of an operator in the host; what cannot be done fails the step.
pub(crate) fn done_followed(turn: &mut Turn<'_>, number: u32, done: TaskDone) {
    let TaskDone { output, usage, effects } = done;
    if let Err(failure) = follow_result(turn, number, output, &effects, usage.clone()) {
        let outcome = Outcome::Failed(settle::located(turn.run, number, failure));
        steps::finish_step(turn, number, outcome, None, usage);
    }
}

/// Takes such a result: the next follow-up is under way, or the step ends.
pub(crate) fn follow_result(
    turn: &mut Turn<'_>,
    number: u32,
    output: Json,
    effects: &[Effect],
    usage: Option<Usage>,
) -> Result<(), Failure> {
    let Some(task) = turn.run.task(number) else { return Ok(()) };
    let mut follows = match &task.follows {
        Some(follows) => (**follows).clone(),
        None => {
            let request = &task.request;
            Follows::begin(&task.operator, request.input.clone(), request.opts.asked.clone())
        }
    };
    let home = Arc::clone(task.home.as_ref().unwrap_or(&task.agent));
    let attempt = task.attempt;
    follows.take(output.clone(), effects)?;
    let Some(next) = follows.queue.pop_front() else {
        let value = values::fitting(&home, &follows.value())?;
        let kept = effects::apply_effects(turn, number, effects)?;
        settle::ended(turn.run, number, &value);
        files::publish(turn.run, number, attempt);
        steps::finish_step(turn, number, Outcome::Completed(value), kept, usage);
        return Ok(());
    };
    follows.signals += effects::signals(effects);
    let effects = effects::apply_effects(turn, number, effects)?;
    match turn.run.task_mut(number) {
        Some(task) if task.follows.is_some() || !task.promises.is_empty() => {
            task.first.append(&mut task.promises);
        }
        // For the layers it fell short, although it only waits for a person.
        _ => settle::take_up(turn, number),
    }
    files::publish(turn.run, number, attempt);
    fault::point("engine.follow");
    follows.current = next;
    places::leave(turn, number, "the rest is left to another operator");
    let plan = Json::encode(&follows).expect("follow-ups are plain data");
    let (why, to) = (follows.current.why.as_str().to_owned(), follows.current.operator.clone());
    let followed =
        Followed { step: number, attempt, output, effects, usage, why, operator: to, plan };
    counting::follow(turn.run, number, followed.usage.as_ref());
    facts::append(turn, Fact::Decided(Decision::Follow(Box::new(followed))));
    match switch(turn, number, follows) {
        Ok(()) => opening::next_attempt(turn, number),
        Err(failure) => {
            let failure = settle::located(turn.run, number, failure);
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
        }
    }
    Ok(())
}

/// Takes up again what an open step has left to others.
pub(crate) fn take_up_follows(turn: &mut Turn<'_>, number: u32) -> Result<(), Failure> {
    let plan = turn.run.chain.step(number).and_then(|step| step.follows.clone());
    let Some(plan) = plan else { return Ok(()) };
    let follows = plan.decode().map_err(|error| {
        Failure::new(kind::REFUSED, format!("read the step's follow-ups: {error}"))
    })?;
    settle::take_up(turn, number);
    switch(turn, number, follows)
}

/// Lets the open task be the one that is under way.
fn switch(turn: &mut Turn<'_>, number: u32, follows: Follows) -> Result<(), Failure> {
    let Follow { why, operator, input, asked } = follows.current.clone();
    let operator = turn.shared.registry.name_of(&operator).to_owned();
    let Some(backend) = turn.shared.registry.get(&operator) else {
        let message = format!("there is no operator {operator:?}");
        return Err(Failure::new(kind::OPERATOR_UNAVAILABLE, message));
    };
    let Some(task) = turn.run.task_mut(number) else { return Ok(()) };
    let home = Arc::clone(task.home.get_or_insert_with(|| Arc::clone(&task.agent)));
    task.agent = match why {
        Why::Resume => Arc::clone(&home),
        Why::Delegate | Why::Handoff => Arc::new(home.stand_in(&operator)),
        Why::Approval => Arc::new(CompiledAgent::approval(None)?),
    };
    task.goes_to(Arc::from(operator.as_str()), &**backend);
    if task.asks_people {
        (task.timeout_ms, task.park_ms) = (None, None);
    } else {
        task.time(home.agent(), &**backend, turn.shared.settings.park_ms);
    }
    task.request.input = input;
    task.request.opts.asked = asked;
    task.follows = Some(Box::new(follows));
    Ok(())
}
