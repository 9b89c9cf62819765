//! The entry: one fact of a run's history. `stored` has its binary form.

use serde::{Deserialize, Serialize};

use super::{Additions, Spent, StepKey, Usage};
use crate::protocol::{Failure, Json, StepKind};

/// One fact, numbered within its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The number of the entry in its run, from 1 and without gaps, across `continue_as`.
    pub seq: u32,
    /// The time of the fact, in Unix milliseconds.
    pub at_ms: u64,
    /// The fact.
    pub fact: Fact,
    /// Metadata beside the fact.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    pub additions: Additions,
}

/// An event in the life of a run.
///
/// The order of the variants is part of the stored form: add new ones at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The run started, or started a new history (`ctx:continue_as`).
    RunStarted(Box<RunStarted>),
    /// A step was scheduled, and its first attempt opened.
    StepScheduled(Box<Scheduled>),
    /// A step was scheduled and ended in one transition: in-process work, state, a queued signal.
    StepRecorded(Box<Scheduled>, Outcome),
    /// An attempt was delivered to its worker: the prompt was fetched or the child started.
    AttemptDelivered {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The worker.
        worker: String,
        /// When it times out, in Unix milliseconds.
        deadline_ms: Option<u64>,
    },
    /// An attempt ended without ending its step. Another attempt follows.
    AttemptClosed(Box<AttemptClosed>),
    /// Another attempt was opened.
    AttemptOpened(AttemptOpened),
    /// A step ended.
    StepEnded {
        /// The step.
        step: u32,
        /// The attempt that ended it.
        attempt: u32,
        /// The epoch of that attempt.
        epoch: u32,
        /// The outcome of the step.
        outcome: Outcome,
        /// The effects that were applied with it: a JSON array of protocol effects.
        effects: Option<Json>,
        /// The usage, if it was reported.
        usage: Option<Usage>,
    },
    /// A signal was accepted.
    SignalReceived(SignalReceived),
    /// The flow recorded a status, a log line or an event.
    Noted {
        /// The position in the flow.
        key: StepKey,
        /// The note.
        note: Note,
    },
    /// A decision about the run was recorded.
    Decided(Decision),
    /// The run ended.
    RunEnded(Outcome),
    /// An attempt requested a secret.
    SecretAccessed {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// A protocol `SecretAccessEvent`. Never contains the secret's value.
        event: Json,
    },
}

/// The start of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The blueprint's name.
    pub blueprint: String,
    /// The hash of the blueprint's bundle, in hex.
    pub hash: String,
    /// The input, with defaults applied.
    pub input: Json,
    /// The trigger of the run, for example `{"kind":"cli"}`.
    pub trigger: Json,
    /// The seed for the run's ids and random numbers.
    pub seed: u64,
    /// The run and step that called this one.
    pub parent: Option<(u64, u32)>,
    /// The number of ancestors in the chain of calling runs.
    pub depth: u32,
    /// The working directory of its child processes.
    pub workdir: Option<String>,
    /// The subject of the token that started the run.
    pub principal: String,
    /// The session that receives every task.
    pub delegate: Option<String>,
    /// The grant of the starter's token, as JSON. Limits what the run may dispatch to.
    pub grant: Json,
    /// The number of this history in the run, from 0.
    pub generation: u32,
    /// The number of the first step of this history.
    pub first_step: u32,
    /// Signals that the previous history left in the queue: (name, payload).
    pub queued: Vec<(String, Json)>,
    /// The number of the previous history's last entry.
    pub continues: Option<u64>,
}

/// A step as it was scheduled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scheduled {
    /// The number of the step in its run, from 1, ascending across scopes and histories.
    pub step: u32,
    /// Its identity in the flow.
    pub key: StepKey,
    /// The previous step in the same scope.
    pub prev: Option<u32>,
    /// The enclosing step: a composite operator for a task, a model loop (or a composite in one)
    /// for a call.
    pub parent: Option<u32>,
    /// The kind of the step.
    pub kind: StepKind,
    /// The name of the agent, signal, blueprint or operation.
    pub name: String,
    /// The counterpart's id: the provider's id of a call in a model loop, the id of a called run,
    /// or the operator of a composite's member.
    pub call_id: Option<String>,
    /// The request, verbatim.
    pub request: Json,
    /// Hash of kind, name and request.
    pub fingerprint: u64,
    /// The number of its first attempt.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// The epoch of the operator's seat.
    pub seat_epoch: u32,
    /// When a timer or the timeout of a wait is due, in Unix milliseconds.
    pub wake_at_ms: Option<u64>,
    /// A one-line summary for people.
    pub summary: Option<String>,
}

/// The outcome of a step or a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Completed with a value.
    Completed(Json),
    /// Failed.
    Failed(Failure),
    /// Canceled, with the reason.
    Canceled(String),
}

/// The end of an attempt that does not end its step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptClosed {
    /// The step.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// The cause.
    pub error: Failure,
    /// The usage, if it was reported.
    pub usage: Option<Usage>,
    /// When the next attempt may start, in Unix milliseconds.
    pub retry_at_ms: u64,
    /// True if it counts against `max_attempts`. An interruption does not.
    pub counts: bool,
}

/// Another attempt of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptOpened {
    /// The step.
    pub step: u32,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// The epoch of the operator's seat.
    pub seat_epoch: u32,
}

/// A received signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignalReceived {
    /// Its name.
    pub name: String,
    /// Its payload.
    pub payload: Json,
    /// The sending run and step, for signals between runs. A repeated signal is dropped.
    pub sender: Option<(u64, u32)>,
}

/// A message from a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// `ctx:status`.
    Status {
        /// The text shown in lists.
        text: String,
        /// Between 0 and 1.
        progress: Option<f64>,
    },
    /// `ctx:log`.
    Log {
        /// `debug`, `info`, `warn` or `error`.
        level: String,
        /// The message.
        message: String,
        /// Structured data of the message.
        data: Option<Json>,
    },
    /// `ctx:publish`.
    Event {
        /// The topic.
        topic: String,
        /// The data.
        data: Json,
    },
}

/// A decision about a run, made by a person, a program or the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Cancels the run.
    Cancel {
        /// The subject of the token.
        by: String,
        /// The reason.
        reason: String,
    },
    /// Pauses the run: nothing is dispatched, results are still accepted.
    Pause {
        /// The subject of the token, or `engine`.
        by: String,
        /// The reason.
        reason: String,
    },
    /// Resumes the run.
    Resume {
        /// The subject of the token.
        by: String,
    },
    /// Starts the compensations of a run that failed or was canceled.
    Compensate {
        /// The outcome of the run after its compensations.
        ending: Outcome,
    },
    /// Marks the entries before it as copied from another run: a fork up to a step, or a whole
    /// imported document.
    Copied {
        /// The subject of the token.
        by: String,
        /// The id of the other run.
        from: String,
        /// The first step that was not copied. Absent if all steps were copied.
        step: Option<u32>,
    },
    /// Gives an operator's seat to a session. The next dispatch goes to that session.
    Seat {
        /// The subject of the token.
        by: String,
        /// The operator.
        operator: String,
        /// The session.
        session: String,
        /// Increases by one with every change of the seat, from 1.
        epoch: u32,
    },
    /// An attempt asked a senior. Its step waits for the answer.
    Escalate {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The question: `{question, data}`.
        question: Json,
    },
    /// A senior answered an attempt. Its step continues.
    Advise {
        /// The subject of the token.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The answer.
        answer: Json,
    },
    /// One answer was given to a task that needs several.
    Answered {
        /// The subject of the token.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The answer.
        output: Json,
        /// The number of answers still needed.
        missing: u32,
    },
    /// A reminder of a task for people was sent.
    Remind {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The number of reminders so far, from 1.
        count: u32,
    },
    /// The time of a task for people was ended early.
    Expire {
        /// The subject of the token.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
    },
    /// A layer, an operator or the engine recorded an event in the life of the run.
    Told {
        /// The step that it belongs to.
        step: Option<u32>,
        /// The kind of the event: `budget`, `compaction`, `observable`.
        kind: String,
        /// The event.
        data: Json,
    },
    /// The usage of the earlier histories; with the addition `called` that of a called run, which
    /// ended after the step that called it.
    Spent(Box<Spent>),
    /// An accepted result left follow-up work. The step continues with another attempt.
    Follow(Box<Followed>),
    /// A session joined the run. Recorded only for sessions that the admin token did not open.
    Joined {
        /// The session.
        session: String,
        /// The party behind the session: the first client or session of its opener's subject.
        party: String,
    },
}

/// A result that did not end its step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    /// The step.
    pub step: u32,
    /// The attempt whose result it was.
    pub attempt: u32,
    /// The result.
    pub output: Json,
    /// The effects that were applied with it: a JSON array of protocol effects.
    pub effects: Option<Json>,
    /// The usage, if it was reported.
    pub usage: Option<Usage>,
    /// The kind of follow-up: `delegate`, `handoff`, `approval`, `resume`.
    pub why: String,
    /// The operator of the next attempt.
    pub operator: String,
    /// The plan of the follow-up, in the engine's form.
    pub plan: Json,
}

impl Entry {
    /// Creates an entry without additions.
    pub fn new(seq: u32, at_ms: u64, fact: Fact) -> Self {
        Self { seq, at_ms, fact, additions: Additions::default() }
    }
}

impl Fact {
    /// Returns the step that the fact changes, if that step was scheduled by an earlier entry.
    pub fn step(&self) -> Option<u32> {
        match self {
            Self::AttemptDelivered { step, .. } | Self::StepEnded { step, .. } => Some(*step),
            Self::AttemptClosed(closed) => Some(closed.step),
            Self::AttemptOpened(opened) => Some(opened.step),
            Self::Decided(Decision::Follow(followed)) => Some(followed.step),
            Self::RunStarted(_)
            | Self::StepScheduled(_)
            | Self::StepRecorded(..)
            | Self::SignalReceived(_)
            | Self::Noted { .. }
            | Self::SecretAccessed { .. }
            | Self::Decided(_)
            | Self::RunEnded(_) => None,
        }
    }

    /// Returns the step and the attempt that the fact ends.
    pub(crate) fn ended_attempt(&self) -> Option<(u32, u32)> {
        match self {
            Self::StepEnded { step, attempt, .. } => Some((*step, *attempt)),
            Self::AttemptClosed(closed) => Some((closed.step, closed.attempt)),
            Self::Decided(Decision::Follow(followed)) => Some((followed.step, followed.attempt)),
            Self::RunStarted(_)
            | Self::StepScheduled(_)
            | Self::StepRecorded(..)
            | Self::AttemptDelivered { .. }
            | Self::AttemptOpened(_)
            | Self::SignalReceived(_)
            | Self::Noted { .. }
            | Self::SecretAccessed { .. }
            | Self::Decided(_)
            | Self::RunEnded(_) => None,
        }
    }

    /// Returns the approximate size of the stored form in bytes. A value that is too small costs
    /// one reallocation, nothing else.
    pub(crate) fn size_hint(&self) -> usize {
        const ENVELOPE: usize = 128;
        let payload = match self {
            Self::StepScheduled(step) => step.request.len(),
            Self::StepRecorded(step, outcome) => step.request.len() + outcome.size_hint(),
            Self::StepEnded { outcome, effects, .. } => {
                outcome.size_hint() + effects.as_ref().map_or(0, Json::len)
            }
            Self::RunEnded(outcome) => outcome.size_hint(),
            Self::RunStarted(started) => {
                let queued = started.queued.iter().map(|(name, it)| name.len() + it.len());
                started.input.len() + started.grant.len() + ENVELOPE + queued.sum::<usize>()
            }
            Self::SignalReceived(signal) => signal.payload.len(),
            Self::Noted { note, .. } => note.size(),
            Self::AttemptClosed(closed) => closed.error.size(),
            Self::Decided(Decision::Follow(followed)) => followed.plan.len(),
            Self::SecretAccessed { event, .. } => event.len(),
            Self::AttemptDelivered { .. } | Self::AttemptOpened(_) | Self::Decided(_) => 0,
        };
        ENVELOPE + payload
    }
}

impl Note {
    /// Returns the approximate size in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Status { text, .. } => text.len(),
            Self::Log { message, data, .. } => message.len() + data.as_ref().map_or(0, Json::len),
            Self::Event { topic, data } => topic.len() + data.len(),
        }
    }
}

impl Scheduled {
    /// Returns the enclosing composite or model loop, for a step that the flow did not request
    /// itself.
    pub fn whole(&self) -> Option<u32> {
        self.parent
    }

    /// Returns the composite's step and the member's operator, if this step is a member of one.
    pub fn member(&self) -> Option<(u32, &str)> {
        match self.kind {
            StepKind::Task => Some((self.parent?, self.call_id.as_deref()?)),
            _ => None,
        }
    }
}

impl Outcome {
    /// Returns the approximate size in bytes.
    pub(crate) fn size_hint(&self) -> usize {
        match self {
            Self::Completed(output) => output.len(),
            Self::Failed(failure) => failure.size(),
            Self::Canceled(reason) => reason.len(),
        }
    }

    /// Returns the value, if completed.
    pub fn output(&self) -> Option<&Json> {
        match self {
            Self::Completed(value) => Some(value),
            Self::Failed(_) | Self::Canceled(_) => None,
        }
    }
}
