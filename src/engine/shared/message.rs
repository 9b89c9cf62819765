//! What a shard is told.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    engine::{
        Answer, Caller, EngineError, Holder, IdempotencyKey, Report, RunView,
        run::{
            feed::Feed,
            loaded::Loaded,
            readers::Subscriber,
            reply::{Lease, ReplyTo, Waiter},
            task::AgentKey,
        },
    },
    environment::Scrubber,
    journal::{Outcome, RunStarted, Usage},
    lua::Program,
    middleware::Dispatched,
    operator::Delivery,
    protocol::{ArtifactId, Failure, Json, LifecycleEvent, RunId, SecretAccessEvent, SessionId},
    store::{Changed, IdempotencyRow, StateChange, StoreError, TaskRow},
};

/// A message to a shard.
pub(crate) enum Msg {
    /// Begin a run.
    Start(Box<NewRun>),
    /// Something for one run.
    Run(u64, RunMsg),
    /// The same, where it came before something that was sent earlier and that it may need.
    Late(u64, RunMsg),
    /// A batch was synced or refused.
    Committed {
        /// The run.
        run: u64,
        /// The batch's number within the run's life in memory.
        batch: u64,
        /// Which life: a reloaded run ignores the batches of the one before.
        life: u64,
        /// Whether it is durable.
        result: Result<(), StoreError>,
    },
    /// A run was read.
    Loaded {
        /// The run.
        run: u64,
        /// Which read: one that was given up is ignored.
        ticket: u64,
        /// What was read.
        result: Box<Result<Option<Loaded>, StoreError>>,
    },
    /// It was read which attempts outlive a run that was let go.
    Recounted(u64, Vec<TaskRow>),
    /// It was read which runs are due.
    Due(Poll, Result<Vec<(u64, u64)>, StoreError>),
    /// What is on its way to a run is to be carried once more, in a while.
    Unheard(u64),
    /// Drop what rests: the host has no room left.
    MakeRoom,
    /// Take up stored runs by itself from now on.
    Recover,
    /// Stop: drop every run, then acknowledge.
    Stop(oneshot::Sender<()>),
}

impl Msg {
    /// Whether it goes before what waits: it ends work, or lets it rest.
    pub(crate) fn is_urgent(&self) -> bool {
        match self {
            Self::Stop(_) => true,
            Self::Run(_, message) => message.is_cancel() || matches!(message, RunMsg::Pause { .. }),
            Self::Late(..)
            | Self::Start(_)
            | Self::Committed { .. }
            | Self::Loaded { .. }
            | Self::Recounted(..)
            | Self::Due(..)
            | Self::Unheard(_)
            | Self::MakeRoom
            | Self::Recover => false,
        }
    }
}

/// A question which runs are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poll {
    /// Tells it from one that was given up.
    pub(crate) ticket: u64,
    /// How far ahead it looks, in Unix milliseconds.
    pub(crate) until_ms: u64,
    /// How far the wall clock was ahead at most of what it shows.
    pub(crate) slack_ms: u64,
}

/// A run to begin.
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) program: Arc<Program>,
    pub(crate) started: RunStarted,
    /// Revoking it refuses the start.
    pub(crate) jti: Option<String>,
    pub(crate) key: Option<(String, IdempotencyKey)>,
    pub(crate) reply: Option<ReplyTo<RunView>>,
    pub(crate) waiter: Option<Waiter>,
    /// Whether it is to go once it has ended and whoever asked was told.
    pub(crate) unstored: bool,
    /// Who is sent every event from the first on.
    pub(crate) subscriber: Option<Subscriber>,
    /// Who holds which operator's seat from the beginning.
    pub(crate) seats: Vec<(String, SessionId)>,
    /// Whether it counts against the quotas of a token.
    pub(crate) charged: bool,
    /// The sessions that took part in the run that calls it, with who stands behind them.
    pub(crate) joined: Vec<(String, String)>,
}

/// A message to a run.
pub(crate) enum RunMsg {
    /// Look at the timers.
    Wake,
    /// Be read into memory, and say when everything that came of it is durable.
    TakeUp(ReplyTo<()>),
    /// Say whether it has nothing to do in this process; it is not read for that.
    IsAtRest(oneshot::Sender<bool>),
    /// Rest, without being read: the host died at it.
    Quarantine { reason: String, reply: ReplyTo<()> },
    /// Answer when it is so.
    Wait(Waiter),
    /// Send every event from now on; answers with the number of the last durable event.
    Subscribe(Subscriber, oneshot::Sender<u32>),
    /// Cancel it.
    Cancel {
        by: String,
        jti: Option<String>,
        reason: String,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<RunView>,
    },

    /// Let it rest.
    Pause { by: String, jti: Option<String>, reason: String, reply: ReplyTo<RunView> },
    /// Let it go on.
    Resume { by: String, jti: Option<String>, reply: ReplyTo<RunView> },
    /// A signal from outside.
    Signal {
        name: String,
        payload: Json,
        caller: Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    },
    /// A signal from another run.
    SignalFrom { sender: (u64, u32), name: String, payload: Json },
    /// A cancel from the run that called it.
    CancelFrom { sender: (u64, u32), by: String, reason: String },
    /// Ask one of its query functions.
    Query { name: String, argument: Json, reply: ReplyTo<Json> },
    /// What a dispatched attempt came to.
    Finished { step: u32, attempt: u32, result: Result<Dispatched, Failure> },
    /// An attempt's worker has it.
    Delivered { step: u32, attempt: u32, delivery: Delivery },
    /// An attempt says something; lossy.
    Progress { step: u32, attempt: u32, data: Json },
    /// An attempt says more of its answer; lossy.
    Delta(Arc<Feed>),
    /// An attempt asked for a secret.
    SecretAccessed { step: u32, attempt: u32, event: Box<SecretAccessEvent> },
    /// A layer or an operator tells something of the run's life.
    Tell { step: u32, event: Box<LifecycleEvent> },
    /// A layer lets the run rest.
    Rest { by: String, reason: String },
    /// There is room for a task of an agent with `max_concurrency`.
    Capacity { step: u32, agent: AgentKey },
    /// A called run could not be stored: it is to be started again.
    ChildLost { step: u32, child: RunId },
    /// It was read which result was accepted of the attempt that a late report is about.
    Repeated(Box<Repeated>),
    /// A step on shared state could not be written: it is to be asked for again.
    StateLater { step: u32 },
    /// What came of a step on shared state.
    StateDone { step: u32, outcome: Outcome },
    /// Changes of its own state from outside.
    ChangeState { changes: Vec<StateChange>, jti: Option<String>, reply: ReplyTo<Vec<Changed>> },
    /// A called run ended.
    ChildEnded {
        step: u32,
        child: RunId,
        outcome: Outcome,
        usage: Option<Usage>,
        /// The sessions that took part in it, with who stands behind them.
        joined: Vec<(String, String)>,
    },
    /// A session may be there for an attempt that waits for one.
    Redispatch { step: u32, attempt: u32 },
    /// The session that had an attempt is gone.
    Unseat { step: u32, attempt: u32, reason: String },
    /// A session takes an operator's seat; answers with the seat's epoch.
    TakeSeat {
        operator: String,
        session: SessionId,
        by: String,
        jti: Option<String>,
        reply: ReplyTo<u32>,
    },
    /// A senior answers what an attempt asked.
    Advise {
        step: u32,
        answer: Json,
        caller: Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    },
    /// A queue worker wants the task.
    Lease { step: u32, attempt: u32, worker: String, reply: ReplyTo<Lease> },
    /// A person answers.
    Answer {
        step: u32,
        answer: Answer,
        /// What they were shown; an answer to something else is refused.
        revision: Option<String>,
        caller: Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    },
    /// Nobody is waited for any longer.
    Expire { step: u32, caller: Caller, key: Option<IdempotencyKey>, reply: ReplyTo<()> },
    /// A worker asks or reports.
    Worker { holder: Holder, ask: WorkerAsk },
}

impl RunMsg {
    /// Whether the store may refuse what comes of it, for the sake of who asked or with which key.
    pub(crate) fn is_checked(&self) -> bool {
        matches!(
            self,
            Self::Cancel { .. }
                | Self::Pause { .. }
                | Self::Resume { .. }
                | Self::Signal { .. }
                | Self::ChangeState { .. }
                | Self::TakeSeat { .. }
                | Self::Advise { .. }
                | Self::Lease { .. }
                | Self::Answer { .. }
                | Self::Expire { .. }
                | Self::Worker { .. }
        )
    }

    /// Whether it asks one of the run's query functions.
    pub(crate) fn is_query(&self) -> bool {
        matches!(self, Self::Query { .. })
    }

    /// Whether it cancels the run.
    pub(crate) fn is_cancel(&self) -> bool {
        matches!(self, Self::Cancel { .. } | Self::CancelFrom { .. })
    }
}

impl WorkerAsk {
    /// The same without the secrets that the attempt was given: nothing after this knows them.
    pub(crate) fn scrubbed(self, secrets: &Scrubber) -> Self {
        let json = |json: Json| secrets.scrub_json(&json);
        let text = |text: String| secrets.scrub_text(&text);
        match self {
            Self::Report(report, reply) => Self::Report(Box::new(report.scrubbed(secrets)), reply),
            Self::Artifact { name, data, reply } => {
                Self::Artifact { name: text(name), data: secrets.scrub(data), reply }
            }
            Self::Progress { data, reply } => Self::Progress { data: json(data), reply },
            Self::Decline { reason, reply } => Self::Decline { reason: text(reason), reply },
            Self::Escalate { question, reply } => {
                Self::Escalate { question: json(question), reply }
            }
            Self::GetState { scope, key, reply } => Self::GetState { scope, key: text(key), reply },
            Self::PutState { scope, key, value, reply } => {
                Self::PutState { scope, key: text(key), value: json(value), reply }
            }
            same @ (Self::Prompt(_) | Self::Heartbeat(_) | Self::Nonce(_) | Self::Accept(_)) => {
                same
            }
        }
    }
}

/// What a worker asks or reports.
pub(crate) enum WorkerAsk {
    /// The prompt; the attempt counts as delivered.
    Prompt(ReplyTo<crate::engine::PromptView>),
    /// The result: true if it was accepted now, false if it had been before.
    Report(Box<Report>, ReplyTo<bool>),
    /// A file.
    Artifact { name: String, data: Vec<u8>, reply: ReplyTo<(ArtifactId, String, u64)> },
    /// A line for whoever watches.
    Progress { data: Json, reply: ReplyTo<()> },
    /// It is alive: (deadline, cancel).
    Heartbeat(ReplyTo<(Option<u64>, bool)>),
    /// It wants a token: the run's nonce.
    Nonce(ReplyTo<u64>),
    /// Its session has it; answers with the deadline.
    Accept(ReplyTo<Option<u64>>),
    /// Its session does not want it.
    Decline { reason: String, reply: ReplyTo<()> },
    /// It asks a senior, and waits.
    Escalate { question: Json, reply: ReplyTo<()> },
    /// Read state, of its run or of another scope.
    GetState { scope: Option<String>, key: String, reply: ReplyTo<Option<Json>> },
    /// Write state, of its run or of another scope.
    PutState { scope: Option<String>, key: String, value: Json, reply: ReplyTo<()> },
}

/// A report on an attempt that is over.
pub(crate) struct Repeated {
    pub(crate) holder: Holder,
    pub(crate) report: Box<Report>,
    /// What it is answered with unless it was accepted before.
    pub(crate) refusal: EngineError,
    /// The accepted report of the attempt.
    pub(crate) before: Option<IdempotencyRow>,
    pub(crate) reply: ReplyTo<bool>,
}

impl RunMsg {
    /// Whether nobody waits for an answer: the engine itself says it, and says it once.
    pub(crate) fn is_told(&self) -> bool {
        matches!(
            self,
            Self::Wake
                | Self::SignalFrom { .. }
                | Self::CancelFrom { .. }
                | Self::ChildLost { .. }
                | Self::Finished { .. }
                | Self::Delivered { .. }
                | Self::SecretAccessed { .. }
                | Self::Capacity { .. }
                | Self::Redispatch { .. }
                | Self::Unseat { .. }
                | Self::Rest { .. }
                | Self::ChildEnded { .. }
                | Self::StateLater { .. }
                | Self::StateDone { .. }
        )
    }
}

/// Answers a message with an error, if it wants an answer.
pub(crate) fn refuse(message: RunMsg, error: impl Fn() -> EngineError) {
    fn send<T>(reply: ReplyTo<T>, error: EngineError) {
        // Who asked may be gone.
        let _ = reply.send(Err(error));
    }
    match message {
        RunMsg::Wake
        | RunMsg::IsAtRest(_)
        | RunMsg::SignalFrom { .. }
        | RunMsg::CancelFrom { .. }
        | RunMsg::ChildLost { .. }
        | RunMsg::Finished { .. }
        | RunMsg::Delivered { .. }
        | RunMsg::Progress { .. }
        | RunMsg::Delta(_)
        | RunMsg::SecretAccessed { .. }
        | RunMsg::Capacity { .. }
        | RunMsg::Redispatch { .. }
        | RunMsg::Unseat { .. }
        | RunMsg::Tell { .. }
        | RunMsg::Rest { .. }
        | RunMsg::ChildEnded { .. }
        | RunMsg::StateLater { .. }
        | RunMsg::StateDone { .. }
        // Dropping the channel says it.
        | RunMsg::Wait(_)
        | RunMsg::Subscribe(..) => {}
        RunMsg::Cancel { reply, .. }
        | RunMsg::Pause { reply, .. } | RunMsg::Resume { reply, .. } => send(reply, error()),
        RunMsg::Signal { reply, .. }
        | RunMsg::Answer { reply, .. }
        | RunMsg::Expire { reply, .. }
        | RunMsg::Advise { reply, .. }
        | RunMsg::TakeUp(reply)
        | RunMsg::Quarantine { reply, .. } => send(reply, error()),
        RunMsg::Query { reply, .. } => send(reply, error()),
        RunMsg::Repeated(repeated) => send(repeated.reply, error()),
        RunMsg::ChangeState { reply, .. } => send(reply, error()),
        RunMsg::Lease { reply, .. } => send(reply, error()),
        RunMsg::TakeSeat { reply, .. } => send(reply, error()),
        RunMsg::Worker { ask, .. } => match ask {
            crate::engine::shared::message::WorkerAsk::Prompt(reply) => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Report(_, reply) => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Artifact { reply, .. } => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Accept(reply) => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Progress { reply, .. }
            | crate::engine::shared::message::WorkerAsk::Decline { reply, .. }
            | crate::engine::shared::message::WorkerAsk::Escalate { reply, .. }
            | crate::engine::shared::message::WorkerAsk::PutState { reply, .. } => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Heartbeat(reply) => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::Nonce(reply) => send(reply, error()),
            crate::engine::shared::message::WorkerAsk::GetState { reply, .. } => send(reply, error()),
        },
    }
}

/// The answer to who wants to lease what is not to be had.
pub(crate) fn refuse_lease(reply: ReplyTo<Lease>) {
    // Who asked may be gone.
    let _ = reply.send(Err(EngineError::Conflict {
        code: "fenced",
        message: "lease the task: it is not waiting any more".into(),
    }));
}
