//! An open task, with the progress of its attempt.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use crate::{
    blueprint::{Agent, CompiledAgent},
    engine::run::{
        feed::Feed,
        follows::Follows,
        question::Question,
        reply::{Answer, ReplyTo},
    },
    flow::{Backoff, TaskRequest},
    middleware::{About, Promise},
    operator::{Backend, Inquiry, Residence},
    store::TaskRow,
};

/// An open task.
pub(crate) struct OpenTask {
    pub(crate) request: TaskRequest,
    pub(crate) agent: Arc<CompiledAgent>,
    pub(crate) operator: Arc<str>,
    pub(crate) residence: Residence,
    /// True if an undelivered attempt is dispatched again after a restart.
    pub(crate) redelivers: bool,
    /// True if its operator asks people, or has sessions.
    pub(crate) asks_people: bool,
    pub(crate) holds_session: bool,
    pub(crate) retry: Backoff,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) park_ms: Option<u64>,
    pub(crate) attempt: u32,
    pub(crate) counted: u32,
    pub(crate) phase: Phase,
    /// The stored row of an attempt outside the process.
    pub(crate) row: Option<Box<TaskRow>>,
    /// The worker in the host, if there is one.
    pub(crate) live: Option<Live>,
    /// The duration of the last attempt's work in this process, if it was measured.
    pub(crate) ran_ms: Option<u64>,
    /// True if it holds a place of its agent.
    pub(crate) place: bool,
    /// The number of results of this attempt that violated the schema.
    pub(crate) invalid: u32,
    /// True if its worker itself reported the end of this attempt.
    pub(crate) reported: bool,
    /// The original agent, while another stands in for it.
    pub(crate) home: Option<Arc<CompiledAgent>>,
    /// The follow-ups of the step.
    pub(crate) follows: Option<Box<Follows>>,
    /// The metadata of this attempt, from its dispatch until the layers have settled it.
    pub(crate) about: Option<Arc<About>>,
    /// The values that the layers store if the result that they have settled is accepted.
    pub(crate) promises: Vec<Promise>,
    /// The values that they store when the step ends, while others go on from the result of its own
    /// operator.
    pub(crate) first: Vec<Promise>,
    /// The tools of its operator, as the layers left them.
    pub(crate) allowed: Option<Option<Vec<String>>>,
    /// True if this attempt was dispatched before the run was loaded.
    pub(crate) again: bool,
    /// The number of consecutive extensions of its time because the process could not receive
    /// reports.
    pub(crate) graces: u32,
    /// The end of its lease as it is stored, if its agent sets the lease.
    pub(crate) stored_lease_ms: u64,
    /// True if this attempt ended because its worker was silent for longer than its lease.
    pub(crate) is_silent: bool,
    /// The pull worker that gets it once every layer has passed it.
    pub(crate) leasing: Option<(String, ReplyTo<Answer>)>,
    /// When it was leased, until that is stored and its worker gets it, on the steady clock.
    pub(crate) handing_ms: Option<u64>,
    /// The unanswered question of this attempt to a senior.
    pub(crate) question: Option<Question>,
    /// The people that it asks, and their answers so far.
    pub(crate) inquiry: Option<Inquiry>,
}

impl OpenTask {
    /// Creates a task before its first attempt. `park_ms` is the time for which tasks wait for a
    /// worker.
    pub(crate) fn new(
        request: TaskRequest,
        agent: Arc<CompiledAgent>,
        operator: Arc<str>,
        backend: &dyn Backend,
        park_ms: u64,
    ) -> Self {
        let own = agent.agent();
        let mut task = Self {
            timeout_ms: None,
            park_ms: None,
            retry: request.opts.retry.clone().unwrap_or_else(|| own.retry.clone()),
            request,
            agent,
            operator: Arc::clone(&operator),
            residence: backend.residence(),
            redelivers: false,
            asks_people: false,
            holds_session: false,
            attempt: 1,
            counted: 0,
            phase: Phase::Pending,
            row: None,
            live: None,
            ran_ms: None,
            place: false,
            invalid: 0,
            reported: false,
            about: None,
            promises: Vec::new(),
            first: Vec::new(),
            allowed: None,
            again: false,
            graces: 0,
            stored_lease_ms: 0,
            is_silent: false,
            leasing: None,
            handing_ms: None,
            question: None,
            home: None,
            follows: None,
            inquiry: None,
        };
        let own = Arc::clone(&task.agent);
        task.goes_to(operator, backend);
        task.time(own.agent(), backend, park_ms);
        task
    }

    /// Sets its times: those of the call, else of its agent, else of its operator.
    pub(crate) fn time(&mut self, own: &Agent, backend: &dyn Backend, park_ms: u64) {
        let of_backend = || Some(u64::try_from(backend.timeout()?.as_millis()).unwrap_or(u64::MAX));
        self.timeout_ms = self.request.opts.timeout_ms.or(own.timeout_ms).or_else(of_backend);
        self.park_ms = own.park_ms.or_else(|| (!self.asks_people).then_some(park_ms));
    }

    /// Lets another operator execute it.
    pub(crate) fn goes_to(&mut self, operator: Arc<str>, backend: &dyn Backend) {
        self.operator = operator;
        self.residence = backend.residence();
        self.redelivers = backend.redelivers();
        self.asks_people = backend.asks_people();
        self.holds_session = backend.holds_session();
    }

    /// Returns the lease that its agent sets, in milliseconds.
    pub(crate) fn own_lease_ms(&self) -> Option<u64> {
        let is_leased = self.residence == Residence::Elsewhere && !self.asks_people;
        self.agent.agent().lease.filter(|_| is_leased).map(|lease| lease.ms)
    }

    /// Returns the number of attempts that count, from which on the next failure is the last.
    pub(crate) fn most_attempts(&self) -> u32 {
        let lease = self.agent.agent().lease.filter(|_| self.is_silent);
        match (&self.request.opts.retry, lease) {
            (None, Some(lease)) => lease.attempts,
            (Some(_), _) | (None, None) => self.retry.max_attempts,
        }
    }

    /// Returns true if this attempt is the open one, and was delivered.
    pub(crate) fn is_with_worker(&self, attempt: u32) -> bool {
        self.attempt == attempt && self.phase == Phase::Delivered
    }

    /// Returns true if a person, a session or a pull worker does it.
    pub(crate) fn is_taken(&self) -> bool {
        let is_queued = self.row.as_ref().is_some_and(|row| row.queue.is_some());
        self.asks_people || self.holds_session || is_queued
    }
}

/// The progress of a task's open attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for a place of its agent.
    Capacity,
    /// Waits for the time of its next attempt.
    Retry,
    /// Waits for a worker.
    Pending,
    /// A worker has it.
    Delivered,
}

/// A worker in the host.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) cancel: CancellationToken,
    pub(crate) reported: CancellationToken,
    /// The deltas of its answer.
    pub(crate) feed: Arc<Feed>,
    /// When its work began in this process.
    pub(crate) began: Arc<Began>,
}

/// When the work of an attempt began in this process, on the steady clock; 0 before.
#[derive(Debug, Default)]
pub(crate) struct Began(AtomicU64);

impl Began {
    /// Notes that it begins, or begins once more.
    pub(crate) fn set(&self, steady_ms: u64) {
        self.0.store(steady_ms.max(1), Ordering::Relaxed);
    }

    /// Notes that it has begun, unless that was noted.
    pub(crate) fn set_once(&self, steady_ms: u64) {
        let first = steady_ms.max(1);
        // Fails if it was noted.
        let _ = self.0.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns how long it has lasted.
    pub(crate) fn elapsed(&self, steady_ms: u64) -> Option<u64> {
        let began = self.0.load(Ordering::Relaxed);
        (began > 0).then(|| steady_ms.saturating_sub(began))
    }
}

/// The blueprint name and the agent.
pub(crate) type AgentKey = (Arc<str>, Arc<str>);
