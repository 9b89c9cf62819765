//! Manages the watchers of a run, and those who wait for it.

use crate::{
    engine::{
        run::{answers::view_of, resident::Run},
        shared::shards::Shared,
        turn::{
            facts::{self, Turn},
            waiting,
        },
    },
    journal::Fact,
    protocol::{Json, SecretAccessEvent},
    store::RunStatus,
};

pub(crate) fn progress(turn: &mut Turn<'_>, step: u32, attempt: u32, data: &Json) {
    if turn.run.subscribers.is_empty() {
        return;
    }
    let event = crate::engine::EventView {
        seq: None,
        kind: "progress".into(),
        at: crate::engine::rfc3339(turn.now_ms),
        data: serde_json::json!({ "step": step, "attempt": attempt, "data": data }).into(),
    };
    crate::engine::turn::pieces::publish(turn.run, &event);
}

/// Answers the waiters whose condition holds now.
pub(crate) fn answer_waiters(run: &mut Run, shared: &Shared) {
    // What is not durable is not so yet.
    if run.waiters.is_empty() || !run.submitted.is_empty() || run.has_pending() {
        return;
    }
    let ended = run.is_ended();
    let people =
        ended || run.header.status == RunStatus::Paused || waiting::waits_for_people(run, shared);
    for waiter in std::mem::take(&mut run.waiters) {
        let is_so = match waiter.until {
            crate::engine::WaitFor::Ended => ended,
            crate::engine::WaitFor::EndedOrPeople => people,
        };
        if is_so {
            drop(waiter.reply.send(view_of(run)));
        } else {
            run.waiters.push(waiter);
        }
    }
}

/// Keeps that an attempt asked for a secret, as long as the run keeps anything.
pub(crate) fn secret_accessed(
    turn: &mut Turn<'_>,
    step: u32,
    attempt: u32,
    mut event: SecretAccessEvent,
) {
    if turn.run.is_ended() || turn.run.chain.step(step).is_none() {
        return;
    }
    event.workflow_id = Some(turn.run.id.to_string());
    let event = Json::encode(&event).expect("an event is plain data");
    facts::append(turn, Fact::SecretAccessed { step, attempt, event });
}
