//! Runs that another node drives for this one: lent once their start is stored, and held messages until
//! they come home.
//!
//! | a message for a run that is away | then |
//! |---|---|
//! | it may be due | nothing: its helper sees to that |
//! | wait for its end | whoever waits looks again when it comes home |
//! | follow its events | whoever follows reads again what is stored; the run comes home when none of its attempts is in work |
//! | anything else | it waits, and the run is recalled |

use crate::{
    engine::{
        EngineError,
        run::{loan::Place, resident::Run},
        shard::{load::HELD, owner::Shard},
        shared::{
            away::Away,
            lending::Rest,
            lent::Patience,
            message::{Internal, RunMsg},
        },
    },
    fault::{self, Break},
    protocol::{Code, Json},
};

impl Shard {
    /// Lends a run whose start is stored, or begins it here if its helper is gone.
    pub(crate) fn hand_over(&mut self, mut run: Box<Run>) {
        let here = Place::Here(self.shared.lending.keep());
        let Some(Place::There(to, share)) = run.place.replace(here) else { return };
        fault::point("engine.lend");
        let num = run.num;
        let publisher = run.publisher.as_ref();
        let publisher =
            publisher.map(|grant| Json::encode(&**grant).expect("a grant is plain data"));
        let link = self.shared.lending.link(to);
        let link = link.filter(|link| link.take(num, &run.header.hash, publisher));
        let Some(link) = link else {
            self.start(&mut run);
            self.settle(run);
            return;
        };
        self.shared.lending.count_lent();
        self.silence(&run);
        let (waiters, subscribers) =
            (std::mem::take(&mut run.waiters), std::mem::take(&mut run.subscribers));
        drop(run);
        let mut away = Away::new(link, share, waiters);
        for subscriber in subscribers {
            away.watch(num, subscriber);
        }
        self.away.insert(num, away);
    }

    /// Holds a message if its run is away; returns it otherwise.
    pub(crate) fn hold_away(&mut self, num: u64, message: RunMsg) -> Option<RunMsg> {
        let Some(away) = self.away.get_mut(&num) else { return Some(message) };
        let is_wake = matches!(message, RunMsg::Internal(Internal::Wake));
        if is_wake && fault::is_broken(Break::WakeLentRuns) {
            return Some(message);
        }
        match message {
            RunMsg::Internal(
                Internal::Wake
                | Internal::Progress { .. }
                | Internal::Delta(_)
                | Internal::Tell { .. },
            ) => {}
            RunMsg::Internal(Internal::IsAtRest(reply)) => {
                // Whoever asked may have given up waiting.
                let _ = reply.send(false);
            }
            RunMsg::Internal(Internal::Wait(waiter)) => {
                away.wait(waiter);
            }
            RunMsg::Internal(Internal::Subscribe(subscriber, reply)) => {
                away.watch(num, subscriber);
                away.recall(num, Patience::Endless);
                // Whoever asked looks at the store first in any case, or is gone.
                let _ = reply.send(0);
            }
            message if away.held.len() >= HELD && !message.is_told() => {
                message.refuse(EngineError::Busy {
                    code: Code::Overloaded,
                    message: format!("{HELD} requests wait for this run to come back"),
                    retry_after_s: 1,
                });
            }
            message => {
                let ends_work = message.is_cancel() || message.is_pause();
                away.held.push(message);
                away.recall(num, if ends_work { Patience::None } else { Patience::Short });
            }
        }
        None
    }

    /// Lets those who follow a run that is away read what is stored of it by now.
    pub(crate) fn stirred(&mut self, num: u64) {
        if let Some(away) = self.away.get_mut(&num) {
            away.stir();
        }
    }

    /// Recalls every run that is away: the attempts of the host are to be interrupted.
    pub(crate) fn recall_all(&mut self) {
        for (run, away) in &mut self.away {
            away.recall(*run, Patience::None);
        }
    }

    /// Takes a run back from its helper. Whoever waits for it, or follows it, looks again.
    pub(crate) fn come_home(&mut self, num: u64, rest: Rest) {
        let Some(away) = self.away.remove(&num) else { return };
        fault::point("engine.home");
        match rest {
            Rest::Ended => self.count_out(num),
            Rest::Now => drop(self.alarms.wall.insert((0, num))),
            Rest::Until(at) => drop(self.alarms.wall.insert((at, num))),
            Rest::Idle => {}
        }
        for message in away.held {
            self.tell(num, message);
        }
    }
}
