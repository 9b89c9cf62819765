//! What a run is told by name: signals from outside and from other runs.

use super::{
    Caller, EngineError, IdempotencyKey, message::ReplyTo, receive::closed, run::Run, shard::Shard,
};
use crate::{
    journal::{Fact, Outcome, SignalReceived},
    protocol::Json,
    store::{Batch, Check, Write},
};

impl Shard {
    pub(super) fn signal(
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
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        self.accept_signal(run, SignalReceived { name, payload, sender: None });
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }

    pub(super) fn signal_from(
        &mut self,
        run: &mut Run,
        sender: (u64, u32),
        name: String,
        payload: Json,
    ) {
        run.pending.writes.push(Write::DeleteOutbox { run: sender.0, step: sender.1 });
        let full = run.chain.queued_signals() >= self.shared.settings.queued_signals;
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
    pub(super) fn match_signal(&mut self, run: &mut Run, name: &str) {
        while let (Some(waiter), Some(payload)) =
            (run.chain.first_waiter(name), run.chain.first_signal(name))
        {
            let value = super::drive::payload_value(payload);
            self.finish_step(run, waiter, Outcome::Completed(value), None, None);
        }
    }

    /// A signal that can never arrive does not stay on its way.
    pub(super) fn drop_signal(&self, (run, step): (u64, u32)) {
        self.shared.store.submit(Batch {
            checks: Vec::new(),
            run: None,
            writes: vec![Write::DeleteOutbox { run, step }],
            ack: Box::new(|_| {}),
        });
    }
}
