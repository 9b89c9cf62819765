//! Signals: received, matched with who waits for them, and sent.

use crate::{
    engine::{
        run::{
            due::Due,
            open::Open,
            perform::Perform,
            values::{WORD_RULE, is_word, payload_value, timeout_value},
        },
        turn::{
            authority,
            facts::{self, Turn},
            lookups, steps,
        },
    },
    flow::StepOp,
    journal::{Fact, Outcome, SignalReceived, StepKey},
    protocol::{Failure, Json, RunId, failure::kind},
    store::{Errand, OutboxRow, Write},
};

/// Hands queued signals of a name to who waits for it.
pub(crate) fn match_signal(turn: &mut Turn<'_>, name: &str) {
    while let (Some(waiter), Some(payload)) =
        (turn.run.chain.first_waiter(name), turn.run.chain.first_signal(name))
    {
        let value = crate::engine::run::values::payload_value(payload);
        steps::finish_step(turn, waiter, Outcome::Completed(value), None, None);
    }
}

pub(crate) fn accept_signal(turn: &mut Turn<'_>, signal: SignalReceived) {
    let name = signal.name.clone();
    facts::append(turn, Fact::SignalReceived(signal));
    if turn.run.chain.paused().is_some() {
        return;
    }
    match_signal(turn, &name);
}

pub(crate) fn schedule_wait(
    turn: &mut Turn<'_>,
    key: &StepKey,
    op: &StepOp,
    name: &str,
    deadline_ms: Option<u64>,
    now: u64,
) {
    let queued = match turn.run.chain.first_waiter(name) {
        Some(_) => None,
        None => turn.run.chain.first_signal(name).map(payload_value),
    };
    match (queued, deadline_ms) {
        (Some(value), _) => steps::record(turn, key, op, Outcome::Completed(value)),
        (None, Some(deadline)) if deadline <= now => {
            steps::record(turn, key, op, Outcome::Completed(timeout_value()));
        }
        (None, deadline) => {
            let number = steps::open(turn, key, op, Open::Signal);
            if let Some(deadline) = deadline {
                turn.run.timers.insert((deadline, number, Due::SignalDeadline));
            }
        }
    }
}

pub(crate) fn send_signal(turn: &mut Turn<'_>, to: &str, name: &str, payload: &Json) -> Outcome {
    let refused = |why: String| Outcome::Failed(Failure::new(kind::REFUSED, why));
    if !is_word(name) {
        return refused(format!("signal: its name has {WORD_RULE}"));
    }
    let Ok(receiver) = to.parse::<RunId>() else {
        return refused(format!("signal {name:?}: {to:?} is not the id of a run"));
    };
    if let Err(error) = authority::may_signal(turn, receiver) {
        return refused(format!("signal {name:?}: {error}"));
    }
    if receiver != turn.run.id {
        match lookups::stored_run(turn, receiver.num()) {
            Ok(Some(run)) if run.created_ms != receiver.created_ms() => {
                return refused(format!("signal {name:?}: there is no run {to}"));
            }
            Ok(Some(run)) if run.is_ended => {
                return refused(format!("signal {name:?}: run {to} has ended"));
            }
            Ok(Some(_)) => {}
            Ok(None) if turn.others.contains_key(&receiver.num()) => {}
            Ok(None) => return refused(format!("signal {name:?}: there is no run {to}")),
            Err(error) => return refused(format!("signal {name:?}: {error}")),
        }
    }
    let step = turn.run.chain.next_step();
    turn.run.pending.writes.push(Write::PutOutbox(OutboxRow {
        run: turn.run.num,
        step,
        to: receiver.num(),
        errand: Errand::Signal { name: name.to_owned(), payload: payload.as_str().to_owned() },
    }));
    turn.run.pending.after.performs.push(Perform::SendSignal {
        step,
        to: receiver.num(),
        name: name.to_owned(),
        payload: payload.clone(),
    });
    Outcome::Completed(Json::null())
}
