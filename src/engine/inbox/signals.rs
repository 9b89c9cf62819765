//! Handles signals, from outside and from other runs.

use std::sync::Arc;

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        inbox::answers,
        run::{answers::refuse_ended, reply::Answer},
        shared::{
            message::{Internal, Msg},
            shards::Shared,
        },
        turn::{facts::Turn, signals, weight},
    },
    fault,
    journal::SignalReceived,
    protocol::{Code, Json},
    store::{Batch, Errand, OutboxRow, Write},
};

/// Sends what runs have for each other. The changes for other stores have lanes of their own.
pub(crate) fn carry(shared: &Shared, rows: Vec<OutboxRow>) {
    for row in rows {
        let (sender, to) = ((row.run, row.step), row.to);
        let message = match row.errand {
            Errand::Signal { name, payload } => {
                Internal::SignalFrom { sender, name, payload: Json::from_trusted(payload) }
            }
            Errand::Cancel { by, reason } => Internal::CancelFrom { sender, by, reason },
            Errand::Change { .. } => continue,
        };
        shared.tell(to, message);
    }
}

/// Takes a signal from outside.
pub(crate) fn signal(
    turn: &mut Turn<'_>,
    name: String,
    payload: Json,
    caller: &Caller,
    key: Option<IdempotencyKey>,
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    let limit = turn.shared.settings.queued_signals;
    if turn.run.chain.queued_signals() >= limit {
        return Err(EngineError::Busy {
            code: Code::SignalQueueFull,
            message: format!("signal {name:?}: {limit} signals wait at this run already"),
            retry_after_s: 5,
        });
    }
    weight::check_weight(turn.run, "a signal", name.len() + payload.len())?;
    fault::point("engine.signal");
    answers::once(turn, caller, key.as_ref());
    signals::accept_signal(turn, SignalReceived { name, payload, sender: None });
    Ok(Answer::Done)
}

pub(crate) fn signal_from(turn: &mut Turn<'_>, sender: (u64, u32), name: String, payload: Json) {
    fault::point("engine.outbox_arrived");
    turn.run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
    let full = turn.run.chain.queued_signals() >= turn.shared.settings.queued_signals
        || weight::check_weight(turn.run, "a signal", name.len() + payload.len()).is_err();
    if turn.run.is_ended() || turn.run.chain.has_received(sender) || full {
        if full {
            tracing::warn!(run = %turn.run.id, name, "a signal from another run found the queue full");
        }
        return;
    }
    signals::accept_signal(turn, SignalReceived { name, payload, sender: Some(sender) });
}

/// Delivers once more what is on its way to a run that has lost what it received.
pub(crate) fn carry_again(shared: &Arc<Shared>, run: u64) {
    let host = Arc::clone(shared);
    shared.tasks.spawn_blocking(move || match host.store.outbox() {
        Ok(rows) => {
            carry(&host, rows.into_iter().filter(|row| row.to == run).collect());
        }
        Err(error) => {
            tracing::error!(run, %error, "could not read what is on its way to a run");
            host.send(run, Msg::Unheard(run));
        }
    });
}

/// A signal that can never arrive does not stay on its way.
pub(crate) fn drop_signal(shared: &Arc<Shared>, to: u64, (run, step): (u64, u32)) {
    let host = std::sync::Arc::clone(shared);
    shared.store.submit(Batch {
        checks: Vec::new(),
        run: None,
        writes: vec![Write::DeleteOutbox { run, step }],
        ack: Box::new(move |result| {
            if result.is_err() {
                host.send(to, Msg::Unheard(to));
            }
        }),
    });
}
