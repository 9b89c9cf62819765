//! Queries over nested open steps.

use crate::{
    blueprint::Does,
    engine::run::{driver::Driver as _, resident::Run},
    flow::response::Begin,
    journal::{ScopePath, StepKey, Usage},
    protocol::{Failure, Json, failure::kind},
    session::EVERY,
};

/// Returns the open composite or loop that a step belongs to: its key, and its step number.
pub(crate) fn composite_of(run: &Run, key: &StepKey) -> Option<(StepKey, u32)> {
    let (scope, index, _): (ScopePath, u32, u32) = key.scope.outer()?;
    let around = StepKey::new(scope, index);
    let number = run.chain.find(&around)?.scheduled.step;
    run.driver(number)?;
    Some((around, number))
}

/// Returns the open members of a composite or loop.
pub(crate) fn members_of(run: &Run, number: u32) -> Vec<u32> {
    if run.model_loop(number).is_some() {
        let is_part = |step: &u32| {
            run.chain.step(*step).is_some_and(|step| step.scheduled.whole() == Some(number))
        };
        return run.chain.open().filter(is_part).collect();
    }
    let (Some(open), Some(step)) = (run.composite(number), run.chain.step(number)) else {
        return Vec::new();
    };
    let key = &step.scheduled.key;
    let member = |place| Some(run.chain.find(&open.key_of(key, place))?.scheduled.step);
    open.course.open().filter_map(member).collect()
}

/// The maximum nesting depth of loops, below the first.
pub(crate) const MOST_DEPTH: usize = 8;

/// Returns true if a step waits for others of its loop's batch.
pub(crate) fn is_held(run: &Run, number: u32) -> bool {
    let Some(step) = run.chain.step(number) else { return false };
    let key = &step.scheduled.key;
    let around = step.scheduled.whole().and_then(|around| run.model_loop(around));
    around.is_some_and(|around| around.is_held(key.index as usize))
}

/// Refuses a loop that is nested too deeply.
pub(crate) fn loop_depth(run: &Run, key: &StepKey) -> Result<(), Failure> {
    let mut depth = 0;
    let mut inner = key.clone();
    while let Some((outer, number)) = composite_of(run, &inner) {
        depth += usize::from(run.model_loop(number).is_some());
        inner = outer;
    }
    if depth > MOST_DEPTH {
        let message = format!("more than {MOST_DEPTH} loops lie within the first");
        return Err(Failure::new(kind::LIMIT, message));
    }
    Ok(())
}

/// Returns the reported usage of a step and everything below it.
pub(crate) fn used_at(run: &Run, key: &StepKey) -> Usage {
    let below = key.scope.branch(key.index, 0);
    let mut used = Usage::default();
    let Some(first) = run.chain.find(key).map(|step| step.scheduled.step) else { return used };
    // Its parts were scheduled after it.
    let steps = run.chain.steps();
    let from = steps.partition_point(|step| step.scheduled.step < first);
    for step in &steps[from..] {
        let own = &step.scheduled.key;
        // The branches of a composite are siblings, all below its key.
        let within = own.scope.depth() > key.scope.depth()
            && own.scope.is_within(&key.scope)
            && same_branch(own, &below);
        if (own == key || within)
            && let Some(usage) = &step.usage
        {
            used.add(usage);
        }
    }
    used
}

pub(crate) fn same_branch(own: &StepKey, below: &crate::journal::ScopePath) -> bool {
    let mut scope = own.scope.clone();
    while scope.depth() > below.depth() {
        match scope.outer() {
            Some((outer, _, _)) => scope = outer,
            None => return false,
        }
    }
    let place = |scope: &crate::journal::ScopePath| scope.outer().map(|(_, index, _)| index);
    place(&scope) == place(below)
}

/// Returns the result of a state tool as the model sees it: keys without the prefix that the tool
/// adds.
pub(crate) fn shown(run: &Run, key: &StepKey, value: Json) -> Json {
    let shown = composite_of(run, key).and_then(|(_, around)| {
        let open = run.model_loop(around)?;
        let Begin::Call(call) = open.flow.part(key.index as usize)? else { return None };
        match open.does(call)? {
            Does::State { op, prefix, .. } => Some(op.shown(value.clone(), &prefix)),
            Does::Task { .. } => None,
        }
    });
    shown.unwrap_or(value)
}

/// Returns the epoch of an operator's seat in a run; 0 if nobody has taken it.
pub(crate) fn seat_epoch(run: &Run, operator: &str) -> u32 {
    let seats = run.chain.seats();
    seats.get(EVERY).or_else(|| seats.get(operator)).map_or(0, |held| held.epoch)
}

/// Returns the session that takes every task of a run.
pub(crate) fn delegate(run: &Run) -> Option<&str> {
    let (started, _) = run.chain.started()?;
    let first = started.delegate.as_deref()?;
    let moved = run.chain.seats().get(EVERY);
    Some(moved.map_or(first, |held| held.session.as_str()))
}
