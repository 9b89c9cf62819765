//! The callers of a world: their requests, and the answers that they hear.

use tokio::sync::oneshot;

use super::World;
use crate::{
    engine::{
        EngineError,
        tests::simulation::{
            acts,
            history::{Ask, Of, Told, What},
        },
    },
    store::StoreError,
};

/// The way of an answer.
pub type Answering = oneshot::Receiver<Result<Told, EngineError>>;

/// A request without an answer.
pub(super) struct Open {
    pub(super) number: u32,
    pub(super) piece: u64,
    pub(super) ask: Ask,
    answer: Answering,
}

impl World {
    /// Asks the engine for something; the answer comes when the scheduler lets it.
    pub fn ask(&mut self, ask: Ask) {
        let future = acts::perform(self, &ask);
        let (piece, answer) = self.host().driver.add(future);
        self.expect(ask, piece, answer);
    }

    /// Adds a piece of work; returns its number.
    pub fn begin(&self, work: impl Future<Output = ()> + Send + 'static) -> u64 {
        self.host().driver.add(work).0
    }

    /// Notes a request; its answer is on its way from a piece of work.
    pub fn expect(&mut self, ask: Ask, piece: u64, answer: Answering) {
        self.asks += 1;
        let number = self.asks;
        self.note(What::Asked(number, ask.clone()));
        self.open.push(Open { number, piece, ask, answer });
    }

    /// The number of workers that wait for a task.
    pub fn pollers(&self) -> usize {
        let waits = |open: &&Open| matches!(open.ask, Ask::Lease { wait_ms: 1.., .. });
        self.open.iter().filter(waits).count()
    }

    /// The number of the last ask.
    pub fn asked(&self) -> u32 {
        self.asks
    }

    /// Writes down the answers that have come.
    pub(super) fn hear(&mut self) {
        let mut place = 0;
        while place < self.open.len() {
            match self.open[place].answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => place += 1,
                Err(oneshot::error::TryRecvError::Closed) => {
                    let open = self.open.remove(place);
                    self.again(open.ask);
                    self.note(What::Lost(open.number));
                }
                Ok(answer) => {
                    let open = self.open.remove(place);
                    self.heard(open.number, &open.ask, answer);
                }
            }
        }
    }

    fn heard(&mut self, number: u32, ask: &Ask, answer: Result<Told, EngineError>) {
        match answer {
            Ok(told) => {
                if let Told::Leased(leased) = &told {
                    // One that waited took what came first, and looked at no line after that.
                    if let Ask::Lease { queue, max, wait_ms: 0, .. } = ask
                        && leased.len() < *max
                    {
                        self.emptied.insert(queue);
                    }
                    let held = leased.iter();
                    self.held.extend(held.map(|&(run, step, attempt)| Of {
                        run,
                        step,
                        attempt,
                        token: None,
                    }));
                }
                self.note(What::Told(number, told));
            }
            Err(EngineError::Store(StoreError::Revoked { .. })) => {
                self.note(What::Refused(number, "token_revoked".into()));
            }
            // Whether it was written is unknown to whoever hears of a failure of the disk.
            Err(EngineError::Store(_) | EngineError::Stopping) => {
                self.note(What::Lost(number));
            }
            Err(error) => self.note(What::Refused(number, error.code().to_string())),
        }
        if let Ask::Report { .. } = ask {
            self.reports.push(ask.clone());
        }
    }

    /// The last caller goes away right after the first part of its request was done.
    pub fn leave_once_taken(&mut self) {
        let open = self.open.pop().expect("somebody asked");
        self.host().driver.poll(open.piece);
        self.host().driver.give_up(open.piece);
        self.note(What::Lost(open.number));
    }

    /// A caller without an answer may ask once more.
    pub(super) fn again(&mut self, ask: Ask) {
        match ask {
            Ask::Start { key: Some(_), .. } | Ask::Signal { key: Some(_), .. } => {
                self.keyed.push(ask);
            }
            Ask::Report { .. } => self.reports.push(ask),
            _ => {}
        }
    }
}
