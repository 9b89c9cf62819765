//! The messages to a shard.

use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use crate::{
    engine::{
        Advice, Caller, EngineError, Holder, IdempotencyKey, Report,
        run::{
            feed::Feed,
            loaded::Loaded,
            loan::{Lent, Place},
            lookups::{Lookup, LookupResult, Publisher, Purpose},
            perform::{Held, Stored},
            readers::Subscriber,
            reply::{Answer, Asked, ReplyTo, Waiter},
            task::AgentKey,
        },
        shared::{lending::Rest, lent::Patience},
    },
    environment::Scrubber,
    journal::{Outcome, RunStarted, Usage},
    lua::Program,
    middleware::Dispatched,
    operator::Delivery,
    protocol::{
        Code, Failure, Json, LifecycleEvent, RunId, SecretAccessEvent, SessionId, Tags, TraceParent,
    },
    store::{IdempotencyRow, StateChange, StoreError, TaskRow},
    token::Grant,
};

/// A message to a shard.
pub(crate) enum Msg {
    /// Starts a run.
    Start(Box<NewRun>),
    /// A message to one run.
    Run(u64, RunMsg),
    /// A message to one run that was put back, so that the start of the run, which was sent
    /// earlier, is handled first.
    Late(u64, RunMsg),
    /// A batch was synced or refused.
    Committed {
        /// The run's number.
        run: u64,
        /// The batch's number within the run's life in memory.
        batch: u64,
        /// The life in memory: a reloaded run ignores the batches of the one before.
        life: u64,
        /// True if it is durable.
        result: Result<(), StoreError>,
    },
    /// The result of loading a run.
    Loaded {
        /// The run.
        run: u64,
        /// Identifies the load; the result of an abandoned one is ignored.
        ticket: u64,
        /// The run as it is stored.
        result: Box<Result<Option<Loaded>, StoreError>>,
    },
    /// The stored open tasks of a run that was dropped from memory.
    Recounted(u64, Vec<TaskRow>),
    /// The stored runs that are due.
    Due(Poll, Result<Vec<(u64, u64)>, StoreError>),
    /// Delivers the pending messages of a run once more, after a delay.
    Unheard(u64),
    /// More is stored of a run that another node drives, and that somebody follows.
    Stirred(u64),
    /// A run that another node drove is home.
    Home(u64, Rest),
    /// Drops idle runs: the host has no memory left.
    MakeRoom,
    /// Interrupts the attempts in this process: the database has been away for long.
    Interrupt,
    /// From now on, takes up stored runs without a request.
    Recover,
    /// Stops: drops every run, then acknowledges.
    Stop(oneshot::Sender<()>),
}

impl Msg {
    /// Returns true if it goes before the waiting messages: it ends or pauses work.
    pub(crate) fn is_urgent(&self) -> bool {
        match self {
            Self::Stop(_) => true,
            Self::Run(_, message) => message.is_cancel() || message.is_pause(),
            Self::Late(..)
            | Self::Start(_)
            | Self::Committed { .. }
            | Self::Loaded { .. }
            | Self::Recounted(..)
            | Self::Due(..)
            | Self::Unheard(_)
            | Self::Stirred(_)
            | Self::Home(..)
            | Self::MakeRoom
            | Self::Interrupt
            | Self::Recover => false,
        }
    }
}

/// A query for the runs that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poll {
    /// Identifies it; the result of an abandoned one is ignored.
    pub(crate) ticket: u64,
    /// The end of the window, in Unix milliseconds.
    pub(crate) until_ms: u64,
    /// The maximum by which the wall clock was ahead of its present time.
    pub(crate) slack_ms: u64,
}

/// A run to start.
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) program: Arc<Program>,
    pub(crate) started: RunStarted,
    /// The grant of the start, decoded.
    pub(crate) grant: Arc<Grant>,
    /// The caller's token; revoking it refuses the start.
    pub(crate) jti: Option<String>,
    pub(crate) key: Option<(String, IdempotencyKey)>,
    pub(crate) reply: Option<ReplyTo<()>>,
    pub(crate) waiter: Option<Waiter>,
    /// True if it is deleted once it has ended and its client was notified.
    pub(crate) unstored: bool,
    /// The subscriber to every event from the first on.
    pub(crate) subscriber: Option<Subscriber>,
    /// The initial seats: operator and session.
    pub(crate) seats: Vec<(String, SessionId)>,
    /// True if it counts against the quotas of a token.
    pub(crate) charged: bool,
    /// The sessions that took part in the parent run, with the parties behind them.
    pub(crate) joined: Vec<(String, String)>,
    /// Its tags.
    pub(crate) tags: Tags,
    /// The span of a distributed trace that its start is a part of.
    pub(crate) trace: Option<TraceParent>,
    /// The publisher of the program.
    pub(crate) publisher: Publisher,
    /// The node that drives it; none for a run that is not lent.
    pub(crate) place: Option<Place>,
    /// Until it is stored, nobody deletes its blueprint; none for a run that is stored already.
    pub(crate) stored: Option<Stored>,
}

/// A message to a run.
pub(crate) enum RunMsg {
    /// A request of a caller.
    Control(Asked<ControlAsk>),
    /// A request or report of a worker.
    Worker(Holder, Asked<WorkerAsk>),
    /// A message of the host itself.
    Internal(Internal),
}

/// A request of a caller to a run.
pub(crate) enum ControlAsk {
    /// Loads the run; replies when everything that followed from that is durable.
    TakeUp,
    /// Pauses the run without loading it: the host died at it.
    Quarantine { reason: String },
    /// Cancels the run.
    Cancel { by: String, jti: Option<String>, reason: String, key: Option<IdempotencyKey> },
    /// Pauses the run.
    Pause { by: String, jti: Option<String>, reason: String },
    /// Resumes the run.
    Resume { by: String, jti: Option<String> },
    /// A signal from a caller.
    Signal { name: String, payload: Json, caller: Caller, key: Option<IdempotencyKey> },
    /// Calls one of its query functions.
    Query { name: String, argument: Json },
    /// Changes of its own state by a caller.
    ChangeState { changes: Vec<StateChange>, jti: Option<String> },
    /// Stores an artifact outside of any task.
    PutArtifact { name: String, data: Vec<u8>, jti: Option<String> },
    /// Assigns an operator's seat to a session; replies with the epoch of the seat.
    TakeSeat { operator: String, session: SessionId, by: String, jti: Option<String> },
    /// A senior's answer to the question of an attempt.
    Advise { step: u32, advice: Advice, caller: Caller, key: Option<IdempotencyKey> },
    /// Leases the task to a pull worker.
    Lease { step: u32, attempt: u32, worker: String },
    /// A person's answer.
    Answer { step: u32, said: PersonAnswer },
    /// Expires a task for people.
    Expire { step: u32, caller: Caller, key: Option<IdempotencyKey> },
    /// Asks if a caller may answer an open task of people; with `asked`, the caller must also be
    /// one of
    /// those that the task asks.
    MayAnswer { step: u32, caller: Caller, asked: bool },
}

/// An answer to a task for people, with its author.
pub(crate) struct PersonAnswer {
    pub(crate) answer: crate::engine::Answer,
    /// The revision that was shown; an answer to another one is refused.
    pub(crate) revision: Option<String>,
    /// True if the caller may answer only what the run asks its starter.
    pub(crate) as_starter: bool,
    pub(crate) caller: Caller,
    pub(crate) key: Option<IdempotencyKey>,
}

/// A message of the host itself to a run.
pub(crate) enum Internal {
    /// Checks the timers.
    Wake,
    /// Drives a run for another node; its first message here. With the publisher of its version.
    Take(Lent, Publisher),
    /// Gives the run back to the node that drives.
    GiveBack(Patience),
    /// Asks whether the run is busy in this process; does not load it.
    IsAtRest(oneshot::Sender<bool>),
    /// Replies when a condition holds.
    Wait(Waiter),
    /// Sends every event from now on; replies with the number of the last durable event.
    Subscribe(Subscriber, oneshot::Sender<u32>),
    /// A signal from another run.
    SignalFrom { sender: (u64, u32), name: String, payload: Json },
    /// A cancel from the parent run.
    CancelFrom { sender: (u64, u32), by: String, reason: String },
    /// The outcome of a dispatched attempt.
    Finished {
        step: u32,
        attempt: u32,
        result: Result<Dispatched, Failure>,
        /// The duration of its work in this process, in milliseconds, if it was measured.
        ran_ms: Option<u64>,
    },
    /// An attempt was delivered to its worker.
    Delivered { step: u32, attempt: u32, delivery: Delivery },
    /// Progress of an attempt; lossy.
    Progress { step: u32, attempt: u32, data: Json },
    /// Deltas of an attempt's answer; lossy.
    Delta(Arc<Feed>),
    /// An attempt accessed a secret.
    SecretAccessed { step: u32, attempt: u32, event: Box<SecretAccessEvent> },
    /// A lifecycle event from a layer or an operator.
    Tell { step: u32, event: Box<LifecycleEvent> },
    /// A layer pauses the run.
    Rest { by: String, reason: String },
    /// A place is free for a task of an agent with `max_concurrency`.
    Capacity { step: u32, agent: AgentKey },
    /// Nobody is before a loop in its conversation any more.
    InConversation { step: u32 },
    /// A child run could not be stored, and must be started again.
    ChildLost { step: u32, child: RunId },
    /// A report on a finished attempt, with the result that was accepted of it.
    Repeated(Box<Repeated>),
    /// The results of reads for the run's flow.
    Found {
        /// The life in memory: a reloaded run ignores the results of the one before.
        life: u64,
        /// The reason for the reads.
        purpose: Purpose,
        /// The results.
        found: Vec<(Lookup, LookupResult)>,
    },
    /// An operation on shared state could not be written, and must be repeated.
    StateLater { step: u32, of: Weak<()> },
    /// The outcome of an operation on shared state.
    StateDone {
        step: u32,
        /// The life of the run whose task it was.
        of: Weak<()>,
        outcome: Outcome,
        /// Until its end is durable, nobody else writes to a scope that somebody else keeps.
        held: Option<Held>,
    },
    /// A child run ended.
    ChildEnded {
        step: u32,
        child: RunId,
        outcome: Outcome,
        usage: Option<Usage>,
        /// The sessions that took part in it, with the parties behind them.
        joined: Vec<(String, String)>,
    },
    /// A session may be available for a waiting attempt.
    Redispatch { step: u32, attempt: u32 },
    /// The lease of an attempt has reached nobody.
    Undelivered { step: u32, attempt: u32 },
    /// The session of an attempt is gone.
    Unseat { step: u32, attempt: u32, reason: String },
}

impl From<Internal> for RunMsg {
    fn from(message: Internal) -> Self {
        Self::Internal(message)
    }
}

impl RunMsg {
    /// Returns true if the store may refuse the resulting batch, because of the caller's token or
    /// the idempotency key.
    pub(crate) fn is_checked(&self) -> bool {
        match self {
            Self::Control(asked) => !matches!(
                asked.ask,
                ControlAsk::TakeUp | ControlAsk::Quarantine { .. } | ControlAsk::Query { .. }
            ),
            Self::Worker(..) => true,
            Self::Internal(_) => false,
        }
    }

    /// Returns true if it calls one of the run's query functions.
    pub(crate) fn is_query(&self) -> bool {
        matches!(self, Self::Control(Asked { ask: ControlAsk::Query { .. }, .. }))
    }

    /// Returns true if it cancels the run.
    pub(crate) fn is_cancel(&self) -> bool {
        matches!(
            self,
            Self::Control(Asked { ask: ControlAsk::Cancel { .. }, .. })
                | Self::Internal(Internal::CancelFrom { .. })
        )
    }

    /// Returns true if it pauses the run.
    pub(crate) fn is_pause(&self) -> bool {
        matches!(self, Self::Control(Asked { ask: ControlAsk::Pause { .. }, .. }))
    }

    /// Replies with an error, if a reply is expected.
    pub(crate) fn refuse(self, error: EngineError) {
        match self {
            Self::Control(asked) => asked.refuse(error),
            Self::Worker(_, asked) => asked.refuse(error),
            Self::Internal(Internal::Repeated(repeated)) => {
                // The caller may be gone.
                let _ = repeated.reply.send(Err(error));
            }
            // Dropping the channel is the reply.
            Self::Internal(message) => drop(message),
        }
    }

    /// Returns true if it is in the outbox of its sender until this run has stored it.
    pub(crate) fn is_carried(&self) -> bool {
        matches!(self, Self::Internal(Internal::SignalFrom { .. } | Internal::CancelFrom { .. }))
    }

    /// Returns true if it comes from the engine itself and expects no reply.
    pub(crate) fn is_told(&self) -> bool {
        match self {
            Self::Control(_) | Self::Worker(..) => false,
            Self::Internal(message) => !matches!(
                message,
                Internal::IsAtRest(_)
                    | Internal::Take(..)
                    | Internal::GiveBack(_)
                    | Internal::Wait(_)
                    | Internal::Subscribe(..)
                    | Internal::Progress { .. }
                    | Internal::Delta(_)
                    | Internal::Tell { .. }
                    | Internal::Repeated(_)
            ),
        }
    }
}

impl WorkerAsk {
    /// Removes the secrets that the attempt was given: from here on nothing knows them.
    pub(crate) fn scrubbed(self, secrets: &Scrubber) -> Self {
        let json = |json: Json| secrets.scrub_json(&json);
        let text = |text: String| secrets.scrub_text(&text);
        match self {
            Self::Report(report) => Self::Report(Box::new(report.scrubbed(secrets))),
            Self::Artifact { name, data } => {
                Self::Artifact { name: text(name), data: secrets.scrub(data) }
            }
            Self::Progress { data } => Self::Progress { data: json(data) },
            Self::Decline { reason, key } => {
                Self::Decline { reason: text(reason), key: key.map(text) }
            }
            Self::Escalate { question } => Self::Escalate { question: json(question) },
            Self::GetState { scope, key } => Self::GetState { scope, key: text(key) },
            Self::PutState { scope, key, value } => {
                Self::PutState { scope, key: text(key), value: json(value) }
            }
            same
            @ (Self::Prompt | Self::Context | Self::Heartbeat | Self::Nonce | Self::Accept) => same,
        }
    }
}

/// A request or report of a worker.
pub(crate) enum WorkerAsk {
    /// Reads the prompt; the attempt counts as delivered.
    Prompt,
    /// Requests the names of what it may open.
    Context,
    /// Reports the result; replies true if it was accepted now, false if it had been before.
    Report(Box<Report>),
    /// Stores a file.
    Artifact { name: String, data: Vec<u8> },
    /// Progress for watchers.
    Progress { data: Json },
    /// A heartbeat; replies with (deadline, cancel).
    Heartbeat,
    /// Requests a token; replies with the run's nonce.
    Nonce,
    /// Its session accepts it; replies with the deadline.
    Accept,
    /// Its session declines it; replies with false if that was done before.
    Decline { reason: String, key: Option<String> },
    /// Escalates a question to a senior, and waits.
    Escalate { question: Json },
    /// Reads state, of its run or of another scope.
    GetState { scope: Option<String>, key: String },
    /// Writes state, of its run or of another scope.
    PutState { scope: Option<String>, key: String, value: Json },
}

/// A report on a finished attempt.
pub(crate) struct Repeated {
    pub(crate) holder: Holder,
    pub(crate) report: Box<Report>,
    /// The reply, unless the same report was accepted before.
    pub(crate) refusal: EngineError,
    /// The accepted report of the attempt.
    pub(crate) before: Option<IdempotencyRow>,
    pub(crate) reply: ReplyTo<Answer>,
}

/// Replies to a lease of a task that is no longer available.
pub(crate) fn refuse_lease(reply: ReplyTo<Answer>) {
    // The caller may be gone.
    let _ = reply.send(Err(EngineError::Conflict {
        code: Code::Fenced,
        message: "lease the task: it is not waiting any more".into(),
    }));
}
