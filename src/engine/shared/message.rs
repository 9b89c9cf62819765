//! The messages to a shard.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    engine::{
        Caller, EngineError, Holder, IdempotencyKey, Report, RunView,
        run::{
            feed::Feed,
            readers::Subscriber,
            reply::{Answer, Asked, ReplyTo, Waiter},
            task::AgentKey,
        },
    },
    environment::Scrubber,
    journal::{Outcome, RunStarted, Usage},
    lua::Program,
    middleware::Dispatched,
    operator::Delivery,
    protocol::{Failure, Json, LifecycleEvent, RunId, SecretAccessEvent, SessionId},
    store::{StateChange, StoreError},
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
        /// Whether it is durable.
        result: Result<(), StoreError>,
    },
    /// Delivers the pending messages of a run once more, after a delay.
    Unheard(u64),
    /// Drops idle runs: the host has no memory left.
    MakeRoom,
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
            | Self::Unheard(_)
            | Self::MakeRoom
            | Self::Recover => false,
        }
    }
}

/// A run to start.
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) program: Arc<Program>,
    pub(crate) started: RunStarted,
    /// The caller's token; revoking it refuses the start.
    pub(crate) jti: Option<String>,
    pub(crate) key: Option<(String, IdempotencyKey)>,
    pub(crate) reply: Option<ReplyTo<RunView>>,
    pub(crate) waiter: Option<Waiter>,
    /// Whether it is deleted once it has ended and its client was notified.
    pub(crate) unstored: bool,
    /// The subscriber to every event from the first on.
    pub(crate) subscriber: Option<Subscriber>,
    /// The initial seats: operator and session.
    pub(crate) seats: Vec<(String, SessionId)>,
    /// Whether it counts against the quotas of a token.
    pub(crate) charged: bool,
    /// The sessions that took part in the parent run, with the parties behind them.
    pub(crate) joined: Vec<(String, String)>,
}

/// A message to a run.
pub(crate) enum RunMsg {
    /// Somebody outside asks for something.
    Control(Asked<ControlAsk>),
    /// A worker asks or reports.
    Worker(Holder, Asked<WorkerAsk>),
    /// The host itself has something for it.
    Internal(Internal),
}

/// What somebody outside asks of a run.
pub(crate) enum ControlAsk {
    /// Be read into memory; answered when everything that came of it is durable.
    TakeUp,
    /// Rest, without being read: the host died at it.
    Quarantine { reason: String },
    /// Cancel it.
    Cancel { by: String, jti: Option<String>, reason: String, key: Option<IdempotencyKey> },
    /// Let it rest.
    Pause { by: String, jti: Option<String>, reason: String },
    /// Let it go on.
    Resume { by: String, jti: Option<String> },
    /// A signal from outside.
    Signal { name: String, payload: Json, caller: Caller, key: Option<IdempotencyKey> },
    /// Ask one of its query functions.
    Query { name: String, argument: Json },
    /// Changes of its own state from outside.
    ChangeState { changes: Vec<StateChange>, jti: Option<String> },
    /// A session takes an operator's seat; answers with the seat's epoch.
    TakeSeat { operator: String, session: SessionId, by: String, jti: Option<String> },
    /// A senior answers what an attempt asked.
    Advise { step: u32, answer: Json, caller: Caller, key: Option<IdempotencyKey> },
    /// A queue worker wants the task.
    Lease { step: u32, attempt: u32, worker: String },
    /// A person answers.
    Answer { step: u32, said: Said },
    /// Nobody is waited for any longer.
    Expire { step: u32, caller: Caller, key: Option<IdempotencyKey> },
}

/// What somebody says to a task, and who.
pub(crate) struct Said {
    pub(crate) answer: crate::engine::Answer,
    /// What they were shown; an answer to something else is refused.
    pub(crate) revision: Option<String>,
    pub(crate) caller: Caller,
    pub(crate) key: Option<IdempotencyKey>,
}

/// What the host itself has for a run.
pub(crate) enum Internal {
    /// Look at the timers.
    Wake,
    /// Say whether it has nothing to do in this process; it is not read for that.
    IsAtRest(oneshot::Sender<bool>),
    /// Answer when it is so.
    Wait(Waiter),
    /// Sends every event from now on; replies with the number of the last durable event.
    Subscribe(Subscriber, oneshot::Sender<u32>),
    /// A signal from another run.
    SignalFrom { sender: (u64, u32), name: String, payload: Json },
    /// A cancel from the parent run.
    CancelFrom { sender: (u64, u32), by: String, reason: String },
    /// What a dispatched attempt came to.
    Finished { step: u32, attempt: u32, result: Result<Dispatched, Failure> },
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
    /// A child run could not be stored, and must be started again.
    ChildLost { step: u32, child: RunId },
    /// An operation on shared state could not be written, and must be repeated.
    StateLater { step: u32 },
    /// The outcome of an operation on shared state.
    StateDone { step: u32, outcome: Outcome },
    /// A called run ended.
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

    /// Whether it lets the run rest.
    pub(crate) fn is_pause(&self) -> bool {
        matches!(self, Self::Control(Asked { ask: ControlAsk::Pause { .. }, .. }))
    }

    /// Answers with an error, if an answer is wanted.
    pub(crate) fn refuse(self, error: EngineError) {
        match self {
            Self::Control(asked) => asked.refuse(error),
            Self::Worker(_, asked) => asked.refuse(error),
            // Who waits or watches notices that the channel is gone.
            Self::Internal(message) => drop(message),
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
            Self::Decline { reason } => Self::Decline { reason: text(reason) },
            Self::Escalate { question } => Self::Escalate { question: json(question) },
            Self::GetState { scope, key } => Self::GetState { scope, key: text(key) },
            Self::PutState { scope, key, value } => {
                Self::PutState { scope, key: text(key), value: json(value) }
            }
            same @ (Self::Prompt | Self::Heartbeat | Self::Nonce | Self::Accept) => same,
        }
    }
}

/// A request or report of a worker.
pub(crate) enum WorkerAsk {
    /// The prompt; the attempt counts as delivered.
    Prompt,
    /// The result: true if it was accepted now, false if it had been before.
    Report(Box<Report>),
    /// A file.
    Artifact { name: String, data: Vec<u8> },
    /// A line for whoever watches.
    Progress { data: Json },
    /// It is alive: (deadline, cancel).
    Heartbeat,
    /// It wants a token: the run's nonce.
    Nonce,
    /// Its session has it; answers with the deadline.
    Accept,
    /// Its session does not want it.
    Decline { reason: String },
    /// It asks a senior, and waits.
    Escalate { question: Json },
    /// Read state, of its run or of another scope.
    GetState { scope: Option<String>, key: String },
    /// Write state, of its run or of another scope.
    PutState { scope: Option<String>, key: String, value: Json },
}

/// The answer to who wants to lease what is not to be had.
pub(crate) fn refuse_lease(reply: ReplyTo<Answer>) {
    // Who asked may be gone.
    let _ = reply.send(Err(EngineError::Conflict {
        code: "fenced",
        message: "lease the task: it is not waiting any more".into(),
    }));
}
