//! What reaches a run at which the host died: nothing, until somebody takes the risk.

use crate::{
    engine::{EngineError, shard::owner::Shard, shared::message::RunMsg, turn::waiting},
    store::Header,
};

/// How many wait for or watch quarantined runs of a shard.
const OUTSIDE: usize = 1_000;

impl Shard {
    /// Lets a message through to a stored run, unless that is quarantined and is not to be read for
    /// it. Who only waits or watches goes on doing so; `resume` and `cancel` end the quarantine.
    pub(crate) fn past_quarantine(&mut self, header: &Header, message: RunMsg) -> Option<RunMsg> {
        let num = header.num;
        if !waiting::is_deadly(header) {
            return Some(message);
        }
        match message {
            RunMsg::Resume { .. } | RunMsg::Cancel { .. } => {
                // Whatever was carried to it meanwhile, it has not heard.
                self.unheard.insert(num);
                for (num, message) in std::mem::take(&mut self.outside) {
                    self.shared.tell(num, message);
                }
                Some(message)
            }
            RunMsg::Wait(waiter) => {
                self.watch_from_outside(num, RunMsg::Wait(waiter));
                None
            }
            RunMsg::Subscribe(to, reply) => {
                // Whoever asked may have given up waiting.
                let _ = reply.send(header.seq);
                let (again, _) = tokio::sync::oneshot::channel();
                self.watch_from_outside(num, RunMsg::Subscribe(to, again));
                None
            }
            message => {
                crate::engine::shared::message::refuse(message, || EngineError::Conflict {
                    code: "run_paused",
                    message: "the host died at this run: `moonswarm resume` lets it try again"
                        .into(),
                });
                None
            }
        }
    }

    fn watch_from_outside(&mut self, num: u64, message: RunMsg) {
        self.outside.retain(|(_, message)| match message {
            RunMsg::Wait(waiter) => !waiter.reply.is_closed(),
            RunMsg::Subscribe(to, _) => !to.is_closed(),
            _ => false,
        });
        if self.outside.len() < OUTSIDE {
            self.outside.push((num, message));
        }
    }
}
