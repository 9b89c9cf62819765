//! A step as the fold has it.

use crate::{
    journal::{
        Entry, ReportMark, Scheduled, Usage,
        additions::{ALLOWED, BRANCH, LINE},
    },
    protocol::{Failure, Json, StepState},
};

/// The maximum number of earlier attempts that a step keeps, the last ones.
const MOST_EARLIER: usize = 32;

/// An attempt that ended without ending its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierAttempt {
    /// The number.
    pub attempt: u32,
    /// When it was opened, in Unix milliseconds.
    pub opened_ms: u64,
    /// When it was delivered to a worker, in Unix milliseconds.
    pub delivered_ms: Option<u64>,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: u64,
    /// Its worker.
    pub worker: Option<String>,
    /// True if it failed. Otherwise its result left follow-up work.
    pub failed: bool,
}

/// A step of the chain.
#[derive(Debug, Clone)]
pub struct Step {
    /// The step as it was scheduled. `request` is null in a lean chain.
    pub scheduled: Scheduled,
    /// The current state.
    pub state: StepState,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The number of ended attempts that count against the retry policy.
    pub counted: u32,
    /// True while the last attempt is open.
    pub attempt_open: bool,
    /// When it was scheduled, in Unix milliseconds.
    pub scheduled_ms: u64,
    /// When its last attempt was opened, in Unix milliseconds.
    pub opened_ms: u64,
    /// When the last attempt was delivered to a worker, in Unix milliseconds.
    pub delivered_ms: Option<u64>,
    /// The worker of the last attempt.
    pub worker: Option<String>,
    /// When the last attempt times out, in Unix milliseconds.
    pub deadline_ms: Option<u64>,
    /// The operators that the layers left to the last attempt, where these are not those of its agent:
    /// a list of names, or null for all.
    pub allowed: Option<Json>,
    /// When the next attempt may start, in Unix milliseconds.
    pub retry_at_ms: Option<u64>,
    /// When the step ended, in Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// Its time in the queue in total, and the duration of its last attempt's work, in milliseconds.
    pub times: Option<(u64, u64)>,
    /// The output; kept only in a full chain.
    pub output: Option<Json>,
    /// The failure of the step, or of its last closed attempt.
    pub error: Option<Box<Failure>>,
    /// The sum of the usage that its attempts reported.
    pub usage: Option<Box<Usage>>,
    /// The effects that were applied with its results, in order; kept only in a full chain.
    pub effects: Vec<Json>,
    /// The last of the attempts before the current one; kept only in a full chain.
    pub earlier: Vec<EarlierAttempt>,
    /// The marks of the accepted reports of its attempts.
    pub reports: Vec<(u32, ReportMark)>,
    /// The plan of its last follow-up, in the engine's form.
    pub follows: Option<Json>,
    /// The line of the source that scheduled it, `file:line`; kept only in a full chain.
    pub line: Option<String>,
    /// Its branch in words, `map, item 2`; kept only in a full chain.
    pub branch: Option<String>,
}

impl Step {
    /// Returns the mark of the accepted report, or of the decline, of an attempt.
    pub fn report(&self, attempt: u32) -> Option<&ReportMark> {
        self.reports.iter().find(|(of, _)| *of == attempt).map(|(_, mark)| mark)
    }

    /// Keeps the times of the current attempt, which ends without ending the step.
    pub(super) fn end_attempt(&mut self, ended_ms: u64, failed: bool) {
        if self.earlier.len() >= MOST_EARLIER {
            self.earlier.remove(0);
        }
        self.earlier.push(EarlierAttempt {
            attempt: self.attempt,
            opened_ms: self.opened_ms,
            delivered_ms: self.delivered_ms,
            ended_ms,
            worker: self.worker.clone(),
            failed,
        });
    }

    /// Takes the delivery of the current attempt to a worker.
    pub(super) fn deliver(&mut self, worker: &str, deadline_ms: Option<u64>, entry: &Entry) {
        self.state = StepState::Processing;
        self.delivered_ms = Some(entry.at_ms);
        self.worker = Some(worker.to_owned());
        self.deadline_ms = deadline_ms;
        self.allowed = entry.additions.get(ALLOWED).cloned();
    }

    /// Creates a step from the entry that scheduled it.
    pub(super) fn scheduled(scheduled: Scheduled, entry: &Entry, keep_payloads: bool) -> Self {
        let at = entry.at_ms;
        let word = |name| keep_payloads.then(|| entry.additions.text(name)).flatten();
        Self {
            state: StepState::Pending,
            attempt: scheduled.attempt,
            counted: 0,
            attempt_open: true,
            scheduled_ms: at,
            opened_ms: at,
            delivered_ms: None,
            worker: None,
            deadline_ms: None,
            allowed: None,
            retry_at_ms: None,
            ended_ms: None,
            times: None,
            output: None,
            error: None,
            usage: None,
            effects: Vec::new(),
            earlier: Vec::new(),
            reports: Vec::new(),
            follows: None,
            line: word(LINE),
            branch: word(BRANCH),
            scheduled,
        }
    }
}
