//! What a run is told, and what it makes of it.

use std::sync::Arc;

use crate::{
    engine::{
        EngineError,
        inbox::{
            control, escalate, inquiry,
            people::{self, Said},
            seats, signals, state, worker,
        },
        run::{due::Due, task::Phase},
        shared::{
            message::{RunMsg, refuse},
            shards::Shared,
        },
        turn::{
            attempts,
            children::{self, is_child},
            dispatch,
            facts::{self, Turn},
            leases, lineage, opening, pieces, places, scoped, settle, timers, watchers,
        },
    },
    flow::Flow as _,
    journal::{Decision, Fact},
};

/// Refuses a message to a run that does not exist.
pub(crate) fn refuse_unknown(shared: &Arc<Shared>, num: u64, message: RunMsg) {
    match &message {
        RunMsg::SignalFrom { sender, .. } | RunMsg::CancelFrom { sender, .. } => {
            signals::drop_signal(shared, num, *sender);
        }
        RunMsg::Capacity { step, agent } => places::pass_on(shared, agent, num, *step),
        _ => {}
    }
    refuse(message, || EngineError::NotFound { what: "run", id: format!("number {num}") });
}

/// Handles one message of a run that is in memory.
pub(crate) fn receive(turn: &mut Turn<'_>, message: RunMsg) {
    match message {
        RunMsg::Wake => timers::wake(turn),
        RunMsg::IsAtRest(_) => {}
        RunMsg::TakeUp(reply) => {
            timers::wake(turn);
            turn.run.restate = !turn.run.is_ended();
            turn.run.pending.after.replies.push(Box::new(move |result| {
                drop(reply.send(result.map(|_| ())));
            }));
        }
        // It is quarantined before it gets here.
        RunMsg::Quarantine { reply, .. } => drop(reply.send(Ok(()))),
        RunMsg::Wait(waiter) => {
            turn.run.waiters.retain(|waiter| !waiter.reply.is_closed());
            turn.run.waiters.push(waiter);
            watchers::answer_waiters(turn.run, turn.shared);
        }
        RunMsg::Subscribe(subscriber, reply) => {
            // What is on its way to the disk was not made an event: nobody watched. The new
            // subscriber is told to read it once it is there.
            if let Some(last) = turn.run.submitted.back_mut() {
                last.after.events.push(crate::engine::view::events::sync(turn.now_ms));
            }
            turn.run.subscribers.retain(|subscriber| !subscriber.is_closed());
            if !turn.run.is_ended() || !turn.run.submitted.is_empty() || turn.run.has_pending() {
                turn.run.audience.set(true);
                pieces::show_past(turn, &subscriber);
                turn.run.subscribers.push(subscriber);
            }
            // Who asked may be gone.
            let _ = reply.send(turn.run.chain.seq());
        }
        RunMsg::Cancel { by, jti, reason, key, reply } => {
            control::cancel(turn, by, jti, reason, key, reply);
        }
        RunMsg::CancelFrom { sender, by, reason } => {
            control::cancel_from(turn, sender, by, reason);
        }
        RunMsg::Pause { by, jti, reason, reply } => control::pause(turn, by, jti, reason, reply),
        RunMsg::Resume { by, jti, reply } => control::resume(turn, by, jti, reply),
        RunMsg::Signal { name, payload, caller, key, reply } => {
            signals::signal(turn, name, payload, &caller, key, reply);
        }
        RunMsg::SignalFrom { sender, name, payload } => {
            signals::signal_from(turn, sender, name, payload);
        }
        RunMsg::Query { name, argument, reply } => {
            let answer = match turn.run.flow.as_mut() {
                Some(flow) => flow.query(&name, &argument).map_err(EngineError::Flow),
                None => Err(EngineError::Conflict {
                    code: "run_paused",
                    message: format!("query {name:?}: the run's flow cannot be replayed now"),
                }),
            };
            drop(reply.send(answer));
        }
        RunMsg::Tell { step, event } => settle::told(turn, Some(step), &event),
        RunMsg::Rest { by, reason } => {
            if turn.run.chain.paused().is_none() && !turn.run.is_ended() {
                facts::append(turn, Fact::Decided(Decision::Pause { by, reason }));
            }
        }
        RunMsg::Finished { step, attempt, result } => {
            if let Some(task) = turn.run.task_mut(step)
                && task.attempt == attempt
            {
                task.live = None;
            }
            attempts::finished(turn, step, attempt, result);
        }
        RunMsg::Delivered { step, attempt, delivery } => {
            leases::delivered(turn, step, attempt, delivery);
        }
        RunMsg::Progress { step, attempt, data } => watchers::progress(turn, step, attempt, &data),
        RunMsg::Delta(feed) => pieces::take_pieces(turn, &feed),
        RunMsg::SecretAccessed { step, attempt, event } => {
            watchers::secret_accessed(turn, step, attempt, *event);
        }
        RunMsg::Capacity { step, agent } => {
            if turn.run.task(step).is_some_and(|task| task.phase == Phase::Capacity)
                && turn.run.chain.paused().is_none()
            {
                opening::open_attempt(turn, step);
            } else {
                // It has no use for the room: whoever comes next may.
                places::pass_on(turn.shared, &agent, turn.run.num, step);
            }
        }
        RunMsg::ChildLost { step, child } => {
            if is_child(turn.run, step, child) {
                let due = turn.steady_ms + crate::engine::settings::STORAGE_RETRY_MS;
                turn.run.timers.insert((due, step, Due::Child));
            }
        }
        RunMsg::StateLater { step } => scoped::state_later(turn, step),
        RunMsg::Repeated(repeated) => worker::repeated(turn, *repeated),
        RunMsg::StateDone { step, outcome } => scoped::state_done(turn, step, outcome),
        RunMsg::ChangeState { changes, jti, reply } => {
            state::change_from_outside(turn, changes, jti, reply);
        }
        RunMsg::ChildEnded { step, child, outcome, usage, joined } => {
            if is_child(turn.run, step, child) {
                lineage::join_all(turn, joined);
                children::child_ended(turn, step, outcome, usage);
            }
        }
        RunMsg::Redispatch { step, attempt } => {
            if turn.run.task(step).is_some_and(|task| task.row.is_some()) {
                dispatch::dispatch(turn, step, attempt);
            }
        }
        RunMsg::Unseat { step, attempt, reason } => {
            if turn.run.task(step).is_some_and(|task| task.attempt == attempt) {
                seats::reassign(turn, step, &reason);
            }
        }
        RunMsg::TakeSeat { operator, session, by, jti, reply } => {
            seats::take_seat(turn, operator, &session, (by, jti), reply);
        }
        RunMsg::Advise { step, answer, caller, key, reply } => {
            escalate::advise(turn, step, answer, &caller, key, reply);
        }
        RunMsg::Lease { step, attempt, worker, reply } => {
            leases::lease(turn, step, attempt, worker, reply);
        }
        RunMsg::Answer { step, answer, revision, caller, key, reply } => {
            people::answer(turn, step, Said { answer, revision, caller, key }, reply);
        }
        RunMsg::Expire { step, caller, key, reply } => {
            inquiry::expire(turn, step, &caller, key, reply);
        }
        RunMsg::Worker { holder, ask } => worker::worker(turn, &holder, ask),
    }
}
