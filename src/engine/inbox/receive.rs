//! Handles the messages sent to a run.

use std::sync::Arc;

use crate::engine::{
    EngineError,
    inbox::{answers, control, escalate, inquiry, internal, people, seats, signals, state, worker},
    run::reply::{Answer, Answered, Asked},
    shared::{
        message::{ControlAsk, Internal, RunMsg},
        shards::Shared,
    },
    turn::{facts::Turn, leases, places, timers},
};

/// Refuses a message to a run that does not exist.
pub(crate) fn refuse_unknown(shared: &Arc<Shared>, num: u64, message: RunMsg) {
    match &message {
        RunMsg::Internal(
            Internal::SignalFrom { sender, .. } | Internal::CancelFrom { sender, .. },
        ) => signals::drop_signal(shared, num, *sender),
        RunMsg::Internal(Internal::Capacity { step, agent }) => {
            places::pass_on(shared, agent, num, *step);
        }
        _ => {}
    }
    message.refuse(EngineError::NotFound { what: "run", id: format!("number {num}") });
}

/// Handles one message of a run that is in memory.
pub(crate) fn receive(turn: &mut Turn<'_>, message: RunMsg) {
    match message {
        RunMsg::Control(Asked { ask: ControlAsk::Lease { step, attempt, worker }, reply }) => {
            leases::lease(turn, step, attempt, worker, reply);
        }
        RunMsg::Control(Asked { ask, reply }) => {
            let answered = control(turn, ask);
            answers::give(turn.run, reply, answered);
        }
        RunMsg::Worker(holder, asked) => worker::worker(turn, holder, asked),
        RunMsg::Internal(message) => internal::receive(turn, message),
    }
}

/// Does what somebody outside asks.
fn control(turn: &mut Turn<'_>, ask: ControlAsk) -> Answered {
    let answer = match ask {
        ControlAsk::TakeUp => {
            timers::wake(turn);
            turn.run.restate = !turn.run.is_ended();
            Ok(Answer::Done)
        }
        // It is quarantined before it gets here, and a lease is asked for apart.
        ControlAsk::Quarantine { .. } | ControlAsk::Lease { .. } => {
            return Answered::Now(Ok(Answer::Done));
        }
        ControlAsk::Cancel { by, jti, reason, key } => control::cancel(turn, by, jti, reason, key),
        ControlAsk::Pause { by, jti, reason } => control::pause(turn, by, jti, reason),
        ControlAsk::Resume { by, jti } => control::resume(turn, by, jti),
        ControlAsk::Signal { name, payload, caller, key } => {
            signals::signal(turn, name, payload, &caller, key)
        }
        ControlAsk::Query { name, argument } => {
            return Answered::Now(control::query(turn, &name, &argument));
        }
        ControlAsk::PutArtifact { name, data, jti } => {
            control::put_artifact(turn, &name, &data, jti)
        }
        ControlAsk::ChangeState { changes, jti } => state::change_from_outside(turn, changes, jti),
        ControlAsk::TakeSeat { operator, session, by, jti } => {
            seats::take_seat(turn, operator, &session, (by, jti))
        }
        ControlAsk::Advise { step, advice, caller, key } => {
            escalate::advise(turn, step, advice, &caller, key)
        }
        ControlAsk::Answer { step, said } => people::answer(turn, step, said),
        ControlAsk::Expire { step, caller, key } => inquiry::expire(turn, step, &caller, key),
        ControlAsk::MayAnswer { step, caller, asked } => {
            inquiry::may_answer(turn, step, &caller, asked)
        }
    };
    answer.into()
}
