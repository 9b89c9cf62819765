//! Steps: opened, recorded, ended, closed; and who is told how one ended.

use crate::{
    engine::{
        run::{
            branches::{members_of, used_at},
            open::Open,
            perform::Perform,
            resident::Run,
            values::input_of,
        },
        turn::{
            counting,
            facts::{self, Turn},
            files, places, settle,
        },
    },
    flow::StepOp,
    journal::{
        ALLOWED, Additions, BRANCH, Fact, LINE, Outcome, Scheduled, ScopePath, StepKey, Usage,
        fingerprint,
    },
    protocol::{Failure, Json, failure::kind},
};

/// A step that is decided and ended at once.
pub(crate) fn record(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, outcome: Outcome) {
    let scheduled = decided(turn.run, key, op, None);
    let whole = scheduled.whole();
    let origin = origin(turn.run, key);
    facts::append_with(turn, Fact::StepRecorded(Box::new(scheduled), outcome.clone()), origin);
    hand_over(turn.run, key.clone(), whole, outcome);
}

/// Records a task that fails before it begins.
pub(crate) fn refuse(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, failure: Failure) {
    let failure = failure.at(turn.run.chain.next_step(), Some(op.name()), 1);
    record(turn, key, op, Outcome::Failed(failure));
}

/// A step that stays open; answers with its number.
pub(crate) fn open(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, open: Open) -> u32 {
    open_with(turn, key, op, open, None, Additions::default())
}

/// The same, with what is recorded of the step besides.
pub(crate) fn open_with(
    turn: &mut Turn<'_>,
    key: &StepKey,
    op: &StepOp,
    open: Open,
    call_id: Option<String>,
    additions: Additions,
) -> u32 {
    let mut scheduled = decided(turn.run, key, op, call_id);
    if let Open::Task(task) = &open {
        scheduled.seat_epoch = crate::engine::run::branches::seat_epoch(turn.run, &task.operator);
    }
    let number = scheduled.step;
    let mut origin = origin(turn.run, key);
    origin.extend(additions);
    facts::append_with(turn, Fact::StepScheduled(Box::new(scheduled)), origin);
    turn.run.open.insert(number, open);
    number
}

/// Returns where in the source a step of the flow comes from. A part of a whole comes from nowhere.
fn origin(run: &Run, key: &StepKey) -> Additions {
    let mut additions = Additions::default();
    let origin = run.flow.as_ref().map(|flow| flow.origin(key)).unwrap_or_default();
    let of_node = || run.program.as_ref()?.line_of(origin.node.as_deref()?);
    let line = origin.line.or_else(of_node);
    for (name, text) in [(LINE, line), (BRANCH, origin.branch)] {
        if let Some(text) = text {
            additions.put(name, Json::encode(&text).expect("a text is plain data"));
        }
    }
    additions
}

fn decided(run: &Run, key: &StepKey, op: &StepOp, call_id: Option<String>) -> Scheduled {
    let (kind, name, request) = (op.kind(), op.name(), op.request());
    let parent = crate::engine::run::branches::composite_of(run, key).map(|(_, number)| number);
    let known_by = match op {
        StepOp::Task(task) => match &task.part {
            Some(part) => part.call_id.clone(),
            None => task.opts.operator.clone().filter(|_| parent.is_some()),
        },
        _ => None,
    };
    Scheduled {
        step: run.chain.next_step(),
        prev: run.chain.tail(&key.scope),
        key: key.clone(),
        parent,
        kind,
        name: name.to_owned(),
        call_id: call_id.or(known_by),
        fingerprint: fingerprint(kind, name, &request),
        request,
        attempt: 1,
        epoch: run.header.epoch,
        seat_epoch: 0,
        wake_at_ms: op.wake_at_ms(),
        summary: op.summary().map(str::to_owned),
    }
}

/// Returns the operators and tools that the layers left to a model call, where these are not all
/// that its agent has.
fn narrowed(run: &Run, number: u32) -> Option<Vec<String>> {
    match run.open.get(number)? {
        Open::Task(task) if task.request.is_model_call() => {
            let allowed = task.allowed.clone()??;
            (allowed != task.agent.agent().tools).then_some(allowed)
        }
        Open::Composite(composite) => composite.allowed.clone(),
        _ => None,
    }
}

/// Hands the end of a step to its requester: its composite, its loop, or the flow.
fn hand_over(run: &mut Run, key: StepKey, whole: Option<u32>, outcome: Outcome) {
    let Some(whole) = whole else {
        let at_ms = run.chain.last_ms();
        return run.inbox.push_back((input_of(key, outcome), at_ms));
    };
    // A composite does not count what its members use.
    let used = run.model_loop(whole).map_or_else(Usage::default, |_| used_at(run, &key));
    if let Some(driver) = run.driver_mut(whole) {
        driver.ended(&key, outcome, &used);
        run.composing.insert(whole);
    }
}

/// A step's duration in milliseconds as its time in the queue and its time at work, whose sum it is.
///
/// Two clocks measure the duration and the work, each rounds, and one of them may be set: the work
/// can come out longer than the step, and is then all of it.
fn parts_of(duration_ms: u64, ran_ms: u64) -> (u64, u64) {
    let ran_ms = ran_ms.min(duration_ms);
    (duration_ms - ran_ms, ran_ms)
}

/// Ends an open step and releases everything that it held; the flow receives nothing of it.
fn end_step(
    turn: &mut Turn<'_>,
    number: u32,
    outcome: Outcome,
    effects: Option<Json>,
    usage: Option<Usage>,
) {
    let Some(step) = turn.run.chain.step(number) else { return };
    let (attempt, epoch) = (step.attempt, turn.run.header.epoch);
    let mut additions = Additions::default();
    let now = facts::time_of(turn);
    // Seen in this process, or since a worker got the last attempt.
    let seen = turn.run.task(number).and_then(|task| task.ran_ms);
    let ran = seen.or_else(|| Some(now.saturating_sub(step.delivered_ms?)));
    if let Some(ran_ms) = ran.filter(|_| !matches!(outcome, Outcome::Canceled(_))) {
        let (queued_ms, ran_ms) = parts_of(now.saturating_sub(step.scheduled_ms), ran_ms);
        additions.put("queued_ms", Json::from_trusted(queued_ms.to_string()));
        additions.put("ran_ms", Json::from_trusted(ran_ms.to_string()));
    }
    if let Some(allowed) = narrowed(turn.run, number) {
        let allowed = Json::encode(&allowed).expect("a list of names is plain data");
        additions.put(ALLOWED, allowed);
    }
    if matches!(outcome, Outcome::Completed(_)) {
        additions.put_files(&files::published_by(turn.run, number));
    }
    if let Outcome::Canceled(reason) = &outcome {
        // Layers are notified, but their answer is ignored.
        let canceled = Failure::new(kind::CANCELED, reason.clone());
        drop(settle::settle(turn, number, Err(Box::new(canceled.into()))));
    }
    let counted = (&mut *turn.run, &turn.shared.registry);
    counting::end(counted, (number, now), &outcome, usage.as_ref(), additions.times());
    if let Some(open) = turn.run.open.remove(number) {
        let reason = match &outcome {
            Outcome::Completed(_) => "another result was accepted",
            Outcome::Failed(failure) => &failure.message,
            Outcome::Canceled(reason) => reason,
        };
        places::release(turn, number, open, (true, reason));
    }
    let fact = Fact::StepEnded { step: number, attempt, epoch, outcome, effects, usage };
    facts::append_with(turn, fact, additions);
}

/// Ends an open step and hands its value or failure to the flow.
pub(crate) fn finish_step(
    turn: &mut Turn<'_>,
    number: u32,
    outcome: Outcome,
    effects: Option<Json>,
    usage: Option<Usage>,
) {
    let Some(step) = turn.run.chain.step(number) else { return };
    let (key, whole) = (step.scheduled.key.clone(), step.scheduled.whole());
    let allowed = narrowed(turn.run, number);
    end_step(turn, number, outcome.clone(), effects, usage);
    if let Some(driver) = whole.and_then(|whole| turn.run.driver_mut(whole)) {
        driver.narrow(&key, allowed);
    }
    hand_over(turn.run, key, whole, outcome);
}

/// Cancels one open step; nothing comes back to the flow.
pub(crate) fn close(turn: &mut Turn<'_>, number: u32, reason: &str) {
    // A member may have been closed with its composite.
    if turn.run.chain.step(number).is_none_or(|step| step.state.is_terminal()) {
        return;
    }
    close_members(turn, number, reason);
    if let Some(Open::Child { run: child, .. }) = turn.run.open.get(number) {
        let (child, reason) = (*child, reason.to_owned());
        turn.run
            .pending
            .writes
            .push(crate::engine::run::answers::cancel_on_its_way(turn.run, number, child, &reason));
        turn.run.pending.after.performs.push(Perform::CancelChild { step: number, child, reason });
    }
    end_step(turn, number, Outcome::Canceled(reason.to_owned()), None, None);
}

/// Cancels every open step; nothing comes back to the flow.
pub(crate) fn close_all(turn: &mut Turn<'_>, reason: &str) {
    let open: Vec<u32> = turn.run.chain.open().collect();
    for number in open {
        close(turn, number, reason);
    }
}

pub(crate) fn cancel_scope(turn: &mut Turn<'_>, scope: &ScopePath) {
    let within: Vec<u32> = turn
        .run
        .chain
        .open()
        .filter(|number| {
            turn.run
                .chain
                .step(*number)
                .is_some_and(|step| step.scheduled.key.scope.is_within(scope))
        })
        .collect();
    for number in within {
        close(turn, number, "the branch was canceled");
    }
}

/// Cancels the open members of a composite, if the step is one.
pub(crate) fn close_members(turn: &mut Turn<'_>, number: u32, reason: &str) {
    for member in members_of(turn.run, number) {
        close(turn, member, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::parts_of;

    #[test]
    fn the_parts_of_a_duration_are_its_sum_also_where_two_clocks_round_apart() {
        assert_eq!(parts_of(900, 300), (600, 300));
        assert_eq!(parts_of(301, 302), (0, 301));
        assert_eq!(parts_of(0, 302), (0, 0));
    }
}
