//! The fold of a run's entries: the current state of the run.
//!
//! | fact | the chain after it |
//! |---|---|
//! | run started | a new history, with the signals that the last history left in the queue |
//! | step scheduled | one more open step, its first attempt pending |
//! | step recorded | one more step, already ended |
//! | attempt delivered | the step is processing |
//! | attempt closed | the step is pending, its attempt has ended |
//! | attempt opened | the step's next attempt is pending |
//! | step ended | the step is terminal |
//! | signal received | queued, unless its sender's step was seen before |
//! | noted | the status is replaced, if the note is a status |
//! | decided | canceled, paused, resumed, compensating; a copy; the seat's holder; earlier usage |
//! | secret accessed | nothing changes |
//! | run ended | ended; no entry may follow |

mod counted;
mod ending;
mod step;

#[cfg(feature = "host")]
pub(crate) use counted::model_of;
pub use step::{EarlierAttempt, Step};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::{
    Decision, Entry, Fact, Note, Outcome, RunStarted, Scheduled, ScopePath, Spent, StepKey, Tally,
    Usage, key::KeyHash,
};
use crate::protocol::{Failure, Json, StepKind, StepState, Tags, TraceParent};

/// The prefix of a session's id.
pub(crate) const SESSION: &str = "ses_";
/// The maximum number of agents that are remembered.
const MOST_AGENTS: usize = 64;
/// The number of earlier senders of signals after which a new history knows only those of the last one.
const MOST_SENDERS: usize = 4_096;

/// The current state of a run, folded from its entries.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    started: Option<(RunStarted, u64)>,
    state: RunState,
    paused: Option<String>,
    seq: u32,
    last_ms: u64,
    entries: u32,
    first_step: u32,
    steps: Vec<Step>,
    index: HashMap<StepKey, u32, KeyHash>,
    tails: HashMap<ScopePath, u32, KeyHash>,
    open: BTreeSet<u32>,
    done: u32,
    signals: HashMap<String, VecDeque<Json>>,
    queued: usize,
    waiters: HashMap<String, VecDeque<u32>>,
    senders: HashSet<(u64, u32)>,
    /// Those of earlier histories, if this one was not read without them.
    earlier_senders: HashSet<(u64, u32)>,
    seats: BTreeMap<String, SeatHolder>,
    status: Option<(String, Option<f64>)>,
    origins: Vec<String>,
    spent: Spent,
    tally: Tally,
    sessions: BTreeSet<String>,
    joined: BTreeMap<String, String>,
    tags: Tags,
    trace: Option<TraceParent>,
    /// The tags of called runs, by the open step that calls.
    called_with: BTreeMap<u32, Tags>,
    agents: BTreeSet<String>,
    keep_payloads: bool,
    /// True if the chain has no start: it then holds only the steps from `first_step` on.
    is_ending: bool,
    /// Bytes of the payloads of queued signals.
    signal_bytes: usize,
    /// Bytes of the failures and plans that steps hold.
    kept_bytes: usize,
    /// Approximate size in bytes of this history's entries.
    history_bytes: u64,
}

/// The holder of an operator's seat in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatHolder {
    /// The session.
    pub session: String,
    /// Increases by one with every change, from 1.
    pub epoch: u32,
}

/// The phase of a run's life.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum RunState {
    /// The flow advances.
    #[default]
    Active,
    /// The deferred functions run. The run then ends with this outcome.
    Compensating(Outcome),
    /// The run has ended with this outcome.
    Ended(Outcome),
}

/// An entry that cannot be applied to the chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The entry's number is not the next one.
    #[error("fold entry {found}: entry {expected} is next")]
    Gap {
        /// The next entry number.
        expected: u32,
        /// The number of the entry.
        found: u32,
    },
    /// The first fact is not a run start.
    #[error("fold entry {0}: the run has not started")]
    NotStarted(u32),
    /// The step does not exist.
    #[error("fold entry {seq}: there is no step {step}")]
    NoStep {
        /// The entry.
        seq: u32,
        /// The step.
        step: u32,
    },
    /// The step has ended.
    #[error("fold entry {seq}: step {step} has ended")]
    StepEnded {
        /// The entry.
        seq: u32,
        /// The step.
        step: u32,
    },
    /// The step's number is not the next one.
    #[error("fold entry {seq}: step {found} is not the next, {expected} is")]
    StepOrder {
        /// The entry.
        seq: u32,
        /// The next step number.
        expected: u32,
        /// The step number of the entry.
        found: u32,
    },
    /// The run has ended.
    #[error("fold entry {0}: the run has ended")]
    Ended(u32),
}

impl Chain {
    /// Returns an empty chain that drops payloads, for a live run.
    pub fn lean() -> Self {
        Self::default()
    }

    /// Returns an empty chain that keeps requests and outputs, for display.
    pub fn full() -> Self {
        Self { keep_payloads: true, ..Self::default() }
    }

    /// Folds one entry.
    ///
    /// # Errors
    /// Fails when the entry cannot follow the chain's last one. The chain is then unchanged.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), ChainError> {
        let seq = entry.seq;
        if self.started.is_some() && seq != self.seq + 1 {
            return Err(ChainError::Gap { expected: self.seq + 1, found: seq });
        }
        match (&self.started, &entry.fact) {
            (None, Fact::RunStarted(_)) => {}
            (None, fact) if self.is_ending => {
                if fact.step().is_some_and(|step| step < self.first_step) {
                    return Ok(());
                }
            }
            (None, _) => return Err(ChainError::NotStarted(seq)),
            (Some(_), _) if matches!(self.state, RunState::Ended(_)) => {
                return Err(ChainError::Ended(seq));
            }
            (Some(_), _) => {}
        }
        self.fold(entry)?;
        self.keep_report(entry);
        self.seq = seq;
        self.last_ms = entry.at_ms;
        self.entries += 1;
        self.history_bytes += entry.fact.size_hint() as u64;
        Ok(())
    }

    fn fold(&mut self, entry: &Entry) -> Result<(), ChainError> {
        let (seq, at) = (entry.seq, entry.at_ms);
        match &entry.fact {
            Fact::RunStarted(started) => {
                self.start(started, at);
                self.tags = entry.additions.tags();
                self.trace = entry.additions.trace();
            }
            Fact::StepScheduled(scheduled) => {
                self.schedule(entry, scheduled)?;
                let tags = entry.additions.tags();
                if !tags.is_empty() {
                    self.called_with.insert(scheduled.step, tags);
                }
            }
            Fact::StepRecorded(scheduled, outcome) => {
                self.schedule(entry, scheduled)?;
                self.end(seq, scheduled.step, outcome, None, at)?;
                // Scheduled and ended in one transition: a task neither waited nor ran for long.
                if let Some(step) = self.steps.last_mut()
                    && scheduled.kind == StepKind::Task
                {
                    step.times = Some((0, 0));
                }
            }
            Fact::AttemptDelivered { step, worker, deadline_ms, .. } => {
                self.open_step(seq, *step)?.deliver(worker, *deadline_ms, entry);
                if worker.starts_with(SESSION) && !self.sessions.contains(worker) {
                    self.sessions.insert(worker.clone());
                }
            }
            Fact::AttemptClosed(closed) => {
                let keep = self.keep_payloads;
                let step = self.open_step(seq, closed.step)?;
                if keep {
                    step.end_attempt(at, true);
                }
                step.state = StepState::Pending;
                step.attempt_open = false;
                step.counted += u32::from(closed.counts);
                step.retry_at_ms = Some(closed.retry_at_ms);
                let gone = step.error.replace(Box::new(closed.error.clone()));
                add_usage(&mut step.usage, closed.usage.as_ref());
                self.keeps(Some(&closed.error), gone.as_deref());
                self.spend(closed.step, closed.usage.as_ref(), at);
            }
            Fact::AttemptOpened(opened) => {
                let step = self.open_step(seq, opened.step)?;
                step.attempt = opened.attempt;
                step.attempt_open = true;
                step.opened_ms = at;
                step.delivered_ms = None;
                step.worker = None;
                step.deadline_ms = None;
                step.retry_at_ms = None;
            }
            Fact::StepEnded { step, outcome, usage, effects, .. } => {
                self.end(seq, *step, outcome, usage.as_ref(), at)?;
                let place = step.checked_sub(self.first_step).map(|place| place as usize);
                if let Some(step) = place.and_then(|place| self.steps.get_mut(place)) {
                    step.times = entry.additions.times();
                }
                self.keep_effects(*step, effects.as_ref());
            }
            Fact::SignalReceived(signal) => {
                if signal.sender.is_none_or(|sender| self.senders.insert(sender)) {
                    self.queue_signal(&signal.name, signal.payload.clone());
                }
            }
            Fact::Noted { note, .. } => match note {
                Note::Status { text, progress } => self.status = Some((text.clone(), *progress)),
                Note::Log { .. } | Note::Event { .. } => {}
            },
            Fact::SecretAccessed { .. } => {}
            Fact::Decided(decision) => match decision {
                Decision::Copied { from, .. } => {
                    self.origins.push(from.clone());
                    self.tally = Tally::default();
                }
                Decision::Cancel { .. }
                | Decision::Escalate { .. }
                | Decision::Advise { .. }
                | Decision::Answered { .. }
                | Decision::Remind { .. }
                | Decision::Expire { .. }
                | Decision::Told { .. } => {}
                Decision::Spent(spent) => match entry.additions.called() {
                    Some(step) => self.spend_late(step, &spent.total, at),
                    None => self.spent.clone_from(spent),
                },
                Decision::Joined { session, party } => {
                    self.joined.insert(session.clone(), party.clone());
                }
                Decision::Seat { operator, session, epoch, .. } => {
                    let held = SeatHolder { session: session.clone(), epoch: *epoch };
                    self.seats.insert(operator.clone(), held);
                }
                Decision::Follow(followed) => {
                    let keep = self.keep_payloads;
                    let step = self.open_step(seq, followed.step)?;
                    if keep {
                        step.end_attempt(at, false);
                    }
                    step.state = StepState::Pending;
                    step.attempt_open = false;
                    step.retry_at_ms = Some(at);
                    let gone = step.follows.replace(followed.plan.clone());
                    add_usage(&mut step.usage, followed.usage.as_ref());
                    self.kept_bytes += followed.plan.len();
                    self.kept_bytes -= gone.as_ref().map_or(0, Json::len);
                    self.spend(followed.step, followed.usage.as_ref(), at);
                    self.keep_effects(followed.step, followed.effects.as_ref());
                }
                Decision::Pause { reason, .. } => self.paused = Some(reason.clone()),
                Decision::Resume { .. } => self.paused = None,
                Decision::Compensate { ending } => {
                    self.state = RunState::Compensating(ending.clone());
                }
            },
            Fact::RunEnded(outcome) => {
                self.state = RunState::Ended(outcome.clone());
                self.paused = None;
            }
        }
        Ok(())
    }

    fn start(&mut self, started: &RunStarted, at: u64) {
        let keep_payloads = self.keep_payloads;
        let (status, spent) = (self.status.take(), std::mem::take(&mut self.spent));
        // A second copy of a signal may still be on its way, to the run and not to a history.
        let mut earlier_senders = std::mem::take(&mut self.earlier_senders);
        if earlier_senders.len() > MOST_SENDERS {
            earlier_senders.clear();
        }
        earlier_senders.extend(std::mem::take(&mut self.senders));
        *self = Self {
            keep_payloads,
            status,
            spent,
            earlier_senders,
            first_step: started.first_step,
            ..Self::default()
        };
        for (name, payload) in &started.queued {
            self.queue_signal(name, payload.clone());
        }
        self.started = Some((started.clone(), at));
    }

    fn schedule(&mut self, entry: &Entry, scheduled: &Scheduled) -> Result<(), ChainError> {
        let expected = self.next_step();
        if scheduled.step != expected {
            let (seq, found) = (entry.seq, scheduled.step);
            return Err(ChainError::StepOrder { seq, expected, found });
        }
        let number = scheduled.step;
        // A lean chain keeps no request: all its steps share one null.
        let request = match (self.keep_payloads, self.steps.last()) {
            (true, _) => scheduled.request.clone(),
            (false, Some(step)) => step.scheduled.request.clone(),
            (false, None) => Json::null(),
        };
        let scheduled = Scheduled { request, ..scheduled.clone() };
        if scheduled.kind == StepKind::Signal {
            self.waiters.entry(scheduled.name.clone()).or_default().push_back(number);
        }
        if scheduled.kind == StepKind::Task
            && self.agents.len() < MOST_AGENTS
            && !self.agents.contains(&scheduled.name)
        {
            self.agents.insert(scheduled.name.clone());
        }
        self.index.insert(scheduled.key.clone(), number);
        match self.tails.get_mut(&scheduled.key.scope) {
            Some(tail) => *tail = number,
            None => drop(self.tails.insert(scheduled.key.scope.clone(), number)),
        }
        self.open.insert(number);
        self.steps.push(Step::scheduled(scheduled, entry, self.keep_payloads));
        Ok(())
    }

    fn end(
        &mut self,
        seq: u32,
        number: u32,
        outcome: &Outcome,
        usage: Option<&Usage>,
        at: u64,
    ) -> Result<(), ChainError> {
        let keep = self.keep_payloads;
        let step = self.open_step(seq, number)?;
        step.ended_ms = Some(at);
        step.attempt_open = false;
        step.retry_at_ms = None;
        add_usage(&mut step.usage, usage);
        let gone = step.error.take();
        match outcome {
            Outcome::Completed(output) => {
                step.state = StepState::Completed;
                step.output = keep.then(|| output.clone());
            }
            Outcome::Failed(failure) => {
                step.state = StepState::Failed;
                step.error = Some(Box::new(failure.clone()));
            }
            Outcome::Canceled(reason) => {
                step.state = StepState::Canceled;
                let failure =
                    Failure::new(crate::protocol::failure::kind::CANCELED, reason.clone());
                step.error = Some(Box::new(failure));
            }
        }
        let kept = step.error.clone();
        self.keeps(kept.as_deref(), gone.as_deref());
        let step = self.step(number).ok_or(ChainError::NoStep { seq, step: number })?;
        if step.scheduled.kind == StepKind::Signal {
            let name = step.scheduled.name.clone();
            let took = outcome.output().is_some_and(took_a_signal);
            if let Some(waiters) = self.waiters.get_mut(&name) {
                waiters.retain(|waiter| *waiter != number);
            }
            if took
                && let Some(queue) = self.signals.get_mut(&name)
                && let Some(payload) = queue.pop_front()
            {
                self.queued -= 1;
                self.signal_bytes -= signal_bytes(&name, &payload);
            }
        }
        self.open.remove(&number);
        self.called_with.remove(&number);
        self.done += 1;
        self.count_end(number, outcome, usage, at);
        self.spend(number, usage, at);
        Ok(())
    }

    fn keep_effects(&mut self, number: u32, effects: Option<&Json>) {
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        if self.keep_payloads
            && let Some(effects) = effects
            && let Some(step) = place.and_then(|place| self.steps.get_mut(place))
        {
            step.effects.push(effects.clone());
        }
    }

    /// Keeps the mark of the accepted report, or of the decline, that ended an attempt.
    fn keep_report(&mut self, entry: &Entry) {
        let Some((number, attempt)) = entry.fact.ended_attempt() else { return };
        let Some(mark) = entry.additions.report() else { return };
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        if let Some(step) = place.and_then(|place| self.steps.get_mut(place)) {
            step.reports.push((attempt, mark));
        }
    }

    /// Updates the byte count when a step's failure replaces an earlier one.
    fn keeps(&mut self, kept: Option<&Failure>, gone: Option<&Failure>) {
        self.kept_bytes += kept.map_or(0, Failure::size);
        self.kept_bytes -= gone.map_or(0, Failure::size);
    }

    fn queue_signal(&mut self, name: &str, payload: Json) {
        self.signal_bytes += signal_bytes(name, &payload);
        self.signals.entry(name.to_owned()).or_default().push_back(payload);
        self.queued += 1;
    }

    fn open_step(&mut self, seq: u32, number: u32) -> Result<&mut Step, ChainError> {
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        match place.and_then(|place| self.steps.get_mut(place)) {
            None => Err(ChainError::NoStep { seq, step: number }),
            Some(step) if step.state.is_terminal() => {
                Err(ChainError::StepEnded { seq, step: number })
            }
            Some(step) => Ok(step),
        }
    }

    /// Returns the start of this history and its time in Unix milliseconds.
    pub fn started(&self) -> Option<(&RunStarted, u64)> {
        self.started.as_ref().map(|(started, at)| (started, *at))
    }

    /// Returns the phase of the run.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Returns the reason for the pause, if the run is paused.
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Returns the number of the last entry.
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// Returns the time of the last entry, in Unix milliseconds.
    pub fn last_ms(&self) -> u64 {
        self.last_ms
    }

    /// Returns the number of entries in this history.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number that the next step gets.
    pub fn next_step(&self) -> u32 {
        self.first_step + u32::try_from(self.steps.len()).expect("steps are bounded")
    }

    /// Returns how many steps this history has, and how many of them have ended.
    pub fn counts(&self) -> (u32, u32) {
        (self.next_step() - self.first_step, self.done)
    }

    /// Returns the steps, ordered by number.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a step by its number.
    pub fn step(&self, number: u32) -> Option<&Step> {
        let place = number.checked_sub(self.first_step)? as usize;
        self.steps.get(place)
    }

    /// Returns a step by its key.
    pub fn find(&self, key: &StepKey) -> Option<&Step> {
        self.step(*self.index.get(key)?)
    }

    /// Returns the number of the last step in a scope.
    pub fn tail(&self, scope: &ScopePath) -> Option<u32> {
        self.tails.get(scope).copied()
    }

    /// Iterates over the numbers of the open steps, in ascending order.
    pub fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.iter().copied()
    }

    /// Returns the number of open steps.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }
}

fn signal_bytes(name: &str, payload: &Json) -> usize {
    const ENVELOPE: usize = 64;
    ENVELOPE + name.len() + payload.len()
}

/// Returns true if the output of a wait holds a signal that the wait took from the queue.
pub(crate) fn took_a_signal(output: &Json) -> bool {
    output.as_str().starts_with("{\"payload\":")
}

fn add_usage(sum: &mut Option<Box<Usage>>, more: Option<&Usage>) {
    if let Some(more) = more {
        sum.get_or_insert_default().add(more);
    }
}

mod questions;

#[cfg(test)]
mod tests;
