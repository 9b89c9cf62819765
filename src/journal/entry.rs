//! The entry: one fact of a run's history. Its stored form is in `stored`.

use serde::{Deserialize, Serialize};

use super::{Additions, Spent, StepKey, Usage};
use crate::protocol::{Failure, Json, StepKind};

/// One fact, numbered within its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The entry's number in its run, from 1 and without gaps, across `continue_as`.
    pub seq: u32,
    /// When it happened, in Unix milliseconds.
    pub at_ms: u64,
    /// What happened.
    pub fact: Fact,
    /// What is said about it besides.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    pub additions: Additions,
}

/// What can happen to a run.
///
/// The order of the variants is part of the stored form: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The run began, or began a fresh history (`ctx:continue_as`).
    RunStarted(Box<RunStarted>),
    /// A step was decided; its first attempt is open from here on.
    StepScheduled(Box<Scheduled>),
    /// A step was decided and ended in the same transition: in-process work, state, queued signals.
    StepRecorded(Box<Scheduled>, Outcome),
    /// An attempt reached its worker: the prompt was fetched, the child started.
    AttemptDelivered {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// Who took it.
        worker: String,
        /// When it times out, in Unix milliseconds.
        deadline_ms: Option<u64>,
    },
    /// An attempt ended without ending its step; another follows.
    AttemptClosed(Box<AttemptClosed>),
    /// A further attempt is open.
    AttemptOpened(AttemptOpened),
    /// A step ended.
    StepEnded {
        /// The step.
        step: u32,
        /// The attempt that ended it.
        attempt: u32,
        /// The epoch of that attempt.
        epoch: u32,
        /// How it ended.
        outcome: Outcome,
        /// The effects that were applied with it: a JSON array of protocol effects.
        effects: Option<Json>,
        /// What it used, if it was reported.
        usage: Option<Usage>,
    },
    /// A signal was accepted.
    SignalReceived(SignalReceived),
    /// The flow said something: a status, a log line, an event.
    Noted {
        /// Where in the flow.
        key: StepKey,
        /// What.
        note: Note,
    },
    /// Somebody decided something about the run.
    Decided(Decision),
    /// The run ended.
    RunEnded(Outcome),
    /// An attempt asked for a secret.
    SecretAccessed {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// A protocol `SecretAccessEvent`, which holds nothing of the secret.
        event: Json,
    },
}

/// The beginning of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The blueprint's name.
    pub blueprint: String,
    /// The hash of the blueprint's bundle, in hex.
    pub hash: String,
    /// The input, after defaults.
    pub input: Json,
    /// What started it: `{"kind":"cli"}`, say.
    pub trigger: Json,
    /// The seed of the run's ids and random numbers.
    pub seed: u64,
    /// The run and step that called this one.
    pub parent: Option<(u64, u32)>,
    /// How many runs lie above this one.
    pub depth: u32,
    /// Where its child processes run.
    pub workdir: Option<String>,
    /// Who started it: a token's subject.
    pub principal: String,
    /// The session that takes every task.
    pub delegate: Option<String>,
    /// What its starter's token allows: a grant as JSON; it bounds what the run may dispatch to.
    pub grant: Json,
    /// Which history of the run this is, from 0.
    pub generation: u32,
    /// The number of the first step of this history.
    pub first_step: u32,
    /// Signals that the history before left queued: (name, payload).
    pub queued: Vec<(String, Json)>,
    /// The number of the last entry of the history before this one.
    pub continues: Option<u64>,
}

/// A step, as it was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scheduled {
    /// The step's number in its run, from 1, monotonic across scopes and histories.
    pub step: u32,
    /// Its identity in the flow.
    pub key: StepKey,
    /// The step before it in the same scope.
    pub prev: Option<u32>,
    /// The step that it is a part of: of a composite operator for a task, of a model's loop (or a
    /// composite in one) for a call.
    pub parent: Option<u32>,
    /// What kind of step.
    pub kind: StepKind,
    /// The agent, signal, blueprint or operation.
    pub name: String,
    /// What the other side is known by: the provider's id of a call in a model loop, the id of a
    /// called run, the operator of a composite's member.
    pub call_id: Option<String>,
    /// What was asked, verbatim.
    pub request: Json,
    /// Hash of kind, name and request.
    pub fingerprint: u64,
    /// The number of its first attempt.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// The epoch of the operator's seat.
    pub seat_epoch: u32,
    /// When a timer or a wait's timeout is due, in Unix milliseconds.
    pub wake_at_ms: Option<u64>,
    /// One line for a person.
    pub summary: Option<String>,
}

/// How a step or a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With a value.
    Completed(Json),
    /// With a failure.
    Failed(Failure),
    /// By a cancel, with its reason.
    Canceled(String),
}

/// The end of an attempt that is not the end of its step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptClosed {
    /// The step.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// Why.
    pub error: Failure,
    /// What it used, if it was reported.
    pub usage: Option<Usage>,
    /// When the next attempt may start, in Unix milliseconds.
    pub retry_at_ms: u64,
    /// Whether it counts against `max_attempts` (an interruption does not).
    pub counts: bool,
}

/// A further attempt of a step.
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

/// A signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignalReceived {
    /// Its name.
    pub name: String,
    /// Its payload.
    pub payload: Json,
    /// The sending run and step, for signals between runs; a repetition is dropped.
    pub sender: Option<(u64, u32)>,
}

/// What a flow says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// `ctx:status`.
    Status {
        /// The text that lists show.
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
        /// Anything more.
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

/// A decision about a run, by a person, a program or the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Cancel it.
    Cancel {
        /// Who: a token's subject.
        by: String,
        /// Why.
        reason: String,
    },
    /// Let it rest: nothing is dispatched, results are still accepted.
    Pause {
        /// Who: a token's subject, or `engine`.
        by: String,
        /// Why.
        reason: String,
    },
    /// Let it go on.
    Resume {
        /// Who.
        by: String,
    },
    /// It failed or was canceled, and runs its compensations now.
    Compensate {
        /// How it will end when they are done.
        ending: Outcome,
    },
    /// What lies before was copied from another run: a fork up to a step, or all of a document.
    Copied {
        /// Who.
        by: String,
        /// The other run's id.
        from: String,
        /// The first step that was not copied; absent if all were.
        step: Option<u32>,
    },
    /// A session took an operator's seat; the next dispatch goes there.
    Seat {
        /// Who: a token's subject.
        by: String,
        /// The operator.
        operator: String,
        /// The session.
        session: String,
        /// Counts up with every change of the seat, from 1.
        epoch: u32,
    },
    /// An attempt asked a senior; its step waits.
    Escalate {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// What it asked: `{question, data}`.
        question: Json,
    },
    /// A senior answered an attempt; its step goes on.
    Advise {
        /// Who.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// The answer.
        answer: Json,
    },
    /// Somebody answered a task that needs several answers.
    Answered {
        /// Who: a token's subject.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// What they said.
        output: Json,
        /// How many more are needed.
        missing: u32,
    },
    /// A task for people was recalled.
    Remind {
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
        /// How often by now, from 1.
        count: u32,
    },
    /// Somebody ended the time of a task for people.
    Expire {
        /// Who: a token's subject.
        by: String,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
    },
    /// A layer, an operator or the engine told something of the run's life.
    Told {
        /// The step that it belongs to.
        step: Option<u32>,
        /// The kind of the event: `budget`, `compaction`, `observable`.
        kind: String,
        /// The event.
        data: Json,
    },
    /// What the histories before this one used.
    Spent(Box<Spent>),
    /// An accepted result left something to others; the step goes on with another attempt.
    Follow(Box<Followed>),
    /// A session takes part whose opener is not the admin token.
    Joined {
        /// The session.
        session: String,
        /// Who stands behind it: the first client or session of its opener's subject.
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
    /// What it used, if it was reported.
    pub usage: Option<Usage>,
    /// What comes next: `delegate`, `handoff`, `approval`, `resume`.
    pub why: String,
    /// Who has the next attempt.
    pub operator: String,
    /// What is left, as the engine takes it up again.
    pub plan: Json,
}

impl Entry {
    /// A fact about which nothing else is said.
    pub fn new(seq: u32, at_ms: u64, fact: Fact) -> Self {
        Self { seq, at_ms, fact, additions: Additions::default() }
    }
}

impl Fact {
    /// The step that it changes, if that was scheduled before.
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

    /// About how many bytes the stored form has; too little costs a copy, nothing else.
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
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Status { text, .. } => text.len(),
            Self::Log { message, data, .. } => message.len() + data.as_ref().map_or(0, Json::len),
            Self::Event { topic, data } => topic.len() + data.len(),
        }
    }
}

impl Scheduled {
    /// The step that it is a part of, where a composite or a model's loop began it: the flow did
    /// not ask for it.
    pub fn whole(&self) -> Option<u32> {
        self.parent
    }

    /// The composite's step and the member's operator, where it is a member of one.
    pub fn member(&self) -> Option<(u32, &str)> {
        match self.kind {
            StepKind::Task => Some((self.parent?, self.call_id.as_deref()?)),
            _ => None,
        }
    }
}

impl Outcome {
    /// About how many bytes it takes.
    pub(crate) fn size_hint(&self) -> usize {
        match self {
            Self::Completed(output) => output.len(),
            Self::Failed(failure) => failure.size(),
            Self::Canceled(reason) => reason.len(),
        }
    }

    /// The value, if it completed.
    pub fn output(&self) -> Option<&Json> {
        match self {
            Self::Completed(value) => Some(value),
            Self::Failed(_) | Self::Canceled(_) => None,
        }
    }
}
