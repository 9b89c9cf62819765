//! What a run is told by name: signals from outside and from other runs.

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        run::{answers::closed, reply::ReplyTo, resident::Run},
        shard::owner::Shard,
        shared::message::{Msg, RunMsg},
    },
    fault,
    journal::{Fact, Outcome, SignalReceived},
    protocol::Json,
    store::{Batch, Check, Errand, OutboxRow, Write},
};

/// What a row of the outbox says to its receiver.
pub(crate) fn carried(row: OutboxRow) -> RunMsg {
    let sender = (row.run, row.step);
    match row.errand {
        Errand::Signal { name, payload } => {
            RunMsg::SignalFrom { sender, name, payload: Json::from_trusted(payload) }
        }
        Errand::Cancel { by, reason } => RunMsg::CancelFrom { sender, by, reason },
    }
}

impl Shard {
    pub(crate) fn signal(
        &mut self,
        run: &mut Run,
        name: String,
        payload: Json,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        let limit = self.shared.settings.queued_signals;
        if run.chain.queued_signals() >= limit {
            drop(reply.send(Err(EngineError::Busy {
                code: "signal_queue_full",
                message: format!("signal {name:?}: {limit} signals wait at this run already"),
                retry_after_s: 5,
            })));
            return;
        }
        let more = name.len() + payload.len();
        if let Err(refusal) = Self::check_weight(run, "a signal", more) {
            drop(reply.send(Err(refusal)));
            return;
        }
        fault::point("engine.signal");
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        self.accept_signal(run, SignalReceived { name, payload, sender: None });
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }

    pub(crate) fn signal_from(
        &mut self,
        run: &mut Run,
        sender: (u64, u32),
        name: String,
        payload: Json,
    ) {
        fault::point("engine.outbox_arrived");
        run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
        let full = run.chain.queued_signals() >= self.shared.settings.queued_signals
            || Self::check_weight(run, "a signal", name.len() + payload.len()).is_err();
        if run.is_ended() || run.chain.has_received(sender) || full {
            if full {
                tracing::warn!(run = %run.id, name, "a signal from another run found the queue full");
            }
            return;
        }
        self.accept_signal(run, SignalReceived { name, payload, sender: Some(sender) });
    }

    fn accept_signal(&mut self, run: &mut Run, signal: SignalReceived) {
        let name = signal.name.clone();
        self.append(run, Fact::SignalReceived(signal));
        if run.chain.paused().is_some() {
            return;
        }
        self.match_signal(run, &name);
    }

    /// Hands queued signals of a name to who waits for it.
    pub(crate) fn match_signal(&mut self, run: &mut Run, name: &str) {
        while let (Some(waiter), Some(payload)) =
            (run.chain.first_waiter(name), run.chain.first_signal(name))
        {
            let value = crate::engine::run::values::payload_value(payload);
            self.finish_step(run, waiter, Outcome::Completed(value), None, None);
        }
    }

    /// Carries once more what is on its way to a run that has lost what it heard.
    pub(crate) fn carry_again(&self, run: u64) {
        match self.shared.store.outbox() {
            Ok(rows) => {
                for row in rows.into_iter().filter(|row| row.to == run) {
                    self.shared.tell(run, carried(row));
                }
            }
            Err(error) => {
                tracing::error!(run, %error, "could not read what is on its way to a run");
            }
        }
    }

    /// A signal that can never arrive does not stay on its way.
    pub(crate) fn drop_signal(&self, to: u64, (run, step): (u64, u32)) {
        let shared = std::sync::Arc::clone(&self.shared);
        self.shared.store.submit(Batch {
            checks: Vec::new(),
            run: None,
            writes: vec![Write::DeleteOutbox { run, step }],
            ack: Box::new(move |result| {
                if result.is_err() {
                    shared.send(to, Msg::Unheard(to));
                }
            }),
        });
    }
}
