//! Holds the messages of a run at which the host died, until the quarantine is lifted.

use crate::protocol::Code;
use crate::{
    engine::{
        EngineError,
        run::reply::Asked,
        shard::owner::Shard,
        shared::message::{ControlAsk, Internal, RunMsg},
        turn::waiting,
    },
    store::Header,
};

/// The maximum number of callers that wait for or watch quarantined runs of a shard.
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
            RunMsg::Control(Asked {
                ask: ControlAsk::Resume { .. } | ControlAsk::Cancel { .. },
                ..
            }) => {
                // It has not received what was carried to it meanwhile.
                self.unheard.insert(num);
                for (num, message) in std::mem::take(&mut self.outside) {
                    self.shared.tell(num, message);
                }
                Some(message)
            }
            RunMsg::Internal(message @ Internal::Wait(_)) => {
                self.watch_from_outside(num, message);
                None
            }
            RunMsg::Internal(Internal::Subscribe(to, reply)) => {
                // Whoever asked may have given up waiting.
                let _ = reply.send(header.seq);
                let (again, _) = tokio::sync::oneshot::channel();
                self.watch_from_outside(num, Internal::Subscribe(to, again));
                None
            }
            message => {
                message.refuse(EngineError::Conflict {
                    code: Code::RunPaused,
                    message: "the host died at this run: `moonswarm resume` lets it try again"
                        .into(),
                });
                None
            }
        }
    }

    fn watch_from_outside(&mut self, num: u64, message: Internal) {
        self.outside.retain(|(_, message)| match message {
            Internal::Wait(waiter) => !waiter.reply.is_closed(),
            Internal::Subscribe(to, _) => !to.is_closed(),
            _ => false,
        });
        if self.outside.len() < OUTSIDE {
            self.outside.push((num, message));
        }
    }
}
