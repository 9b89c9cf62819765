//! Steps: opened, recorded, ended, closed; and who is told how one ended.

use crate::{
    engine::{
        run::{
            branches::{members_of, used_at},
            open::{Open, OpenKind},
            perform::Perform,
            resident::Run,
            values::input_of,
        },
        turn::{
            facts::{self, Turn},
            places, settle,
        },
    },
    flow::StepOp,
    journal::{Additions, Fact, Outcome, Scheduled, ScopePath, StepKey, fingerprint},
    protocol::{Failure, Json, failure::kind},
};

/// A step that is decided and ended at once.
pub(crate) fn record(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, outcome: Outcome) {
    let scheduled = decided(turn.run, key, op, None);
    let whole = scheduled.whole();
    facts::append(turn, Fact::StepRecorded(Box::new(scheduled), outcome.clone()));
    hand_over(turn.run, key.clone(), whole, outcome);
}

/// A step that stays open; answers with its number.
pub(crate) fn open(turn: &mut Turn<'_>, key: &StepKey, op: &StepOp, kind: OpenKind) -> u32 {
    open_as(turn, key, op, kind, None)
}

pub(crate) fn open_as(
    turn: &mut Turn<'_>,
    key: &StepKey,
    op: &StepOp,
    kind: OpenKind,
    call_id: Option<String>,
) -> u32 {
    let mut scheduled = decided(turn.run, key, op, call_id);
    if let OpenKind::Task(task) = &kind {
        scheduled.seat_epoch = crate::engine::run::branches::seat_epoch(turn.run, &task.operator);
    }
    let number = scheduled.step;
    facts::append(turn, Fact::StepScheduled(Box::new(scheduled)));
    turn.run.open.insert(number, Open { kind });
    number
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

/// Tells whoever asked for a step how it ended: its composite or loop, or the flow.
fn hand_over(run: &mut Run, key: StepKey, whole: Option<u32>, outcome: Outcome) {
    match whole {
        Some(whole) => member_ended(run, whole, &key, outcome),
        None => {
            let at_ms = run.chain.last_ms();
            run.inbox.push_back((input_of(key, outcome), at_ms));
        }
    }
}

/// A member of a composite ended.
fn member_ended(run: &mut Run, number: u32, key: &StepKey, outcome: Outcome) {
    if run.model_loop(number).is_some() {
        return part_ended(run, number, key, outcome);
    }
    let Some((_, _, place)) = key.scope.outer() else { return };
    if let Some(open) = run.composite_mut(number) {
        open.course.end(place as usize, outcome);
        run.composing.insert(number);
    }
}

/// Something that a loop began has ended.
fn part_ended(run: &mut Run, number: u32, key: &StepKey, outcome: Outcome) {
    let used = used_at(run, key);
    if let Some(open) = run.model_loop_mut(number) {
        open.came += outcome.size_hint();
        open.flow.end(key.index as usize, outcome, &used);
        run.composing.insert(number);
    }
}

/// Ends an open step and forgets everything that it held; the flow hears nothing of it.
fn end_step(
    turn: &mut Turn<'_>,
    number: u32,
    outcome: Outcome,
    effects: Option<Json>,
    usage: Option<crate::journal::Usage>,
) {
    let Some(step) = turn.run.chain.step(number) else { return };
    let (attempt, epoch) = (step.attempt, turn.run.header.epoch);
    let mut additions = Additions::default();
    let now = facts::time_of(turn);
    // Seen in this process, or since a worker got the last attempt.
    let seen = turn.run.task(number).and_then(|task| task.ran_ms);
    let ran = seen.or_else(|| Some(now.saturating_sub(step.delivered_ms?)));
    if let Some(ran_ms) = ran.filter(|_| !matches!(outcome, Outcome::Canceled(_))) {
        let queued_ms = now.saturating_sub(step.scheduled_ms).saturating_sub(ran_ms);
        additions.put("queued_ms", Json::from_trusted(queued_ms.to_string()));
        additions.put("ran_ms", Json::from_trusted(ran_ms.to_string()));
    }
    if let Outcome::Canceled(reason) = &outcome {
        // Nobody goes by what the layers say of it; they hear of it.
        let canceled = Failure::new(kind::CANCELED, reason.clone());
        drop(settle::settle_attempt(turn, number, Err(Box::new(canceled.into()))));
    }
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
    usage: Option<crate::journal::Usage>,
) {
    let Some(step) = turn.run.chain.step(number) else { return };
    let (key, whole) = (step.scheduled.key.clone(), step.scheduled.whole());
    let outcome = settle::settle_outcome(turn, number, outcome);
    end_step(turn, number, outcome.clone(), effects, usage);
    hand_over(turn.run, key, whole, outcome);
}

/// Cancels one open step; nothing comes back to the flow.
pub(crate) fn close(turn: &mut Turn<'_>, number: u32, reason: &str) {
    // A member may have been closed with its composite.
    if turn.run.chain.step(number).is_none_or(|step| step.state.is_terminal()) {
        return;
    }
    close_members(turn, number, reason);
    if let Some(Open { kind: OpenKind::Child { run: child, .. }, .. }) = turn.run.open.get(number) {
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
