//! One dispatch and what comes of it.

use std::{
    any::Any,
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;

use crate::{
    journal::Usage,
    protocol::{Effect, Failure, Json, LifecycleEvent, OperatorConfig, RunId, TaskId},
};

/// One attempt on its way to an operator.
pub struct Dispatch {
    /// Who and what it is.
    pub about: Arc<About>,
    /// What the agent is given.
    pub input: Json,
    /// What differs from the operator's defaults; for operators that hear of it.
    pub config: OperatorConfig,
    /// The operator that executes it in place of the one that it names. It has to work where that
    /// one does: in the host, or elsewhere.
    pub route: Option<Arc<str>>,
    /// What the terminal needs besides; layers pass it on unread.
    pub payload: Arc<dyn Any + Send + Sync>,
}

/// Who and what an attempt is; the same on the way down and when it is settled.
pub struct About {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// Whether this attempt was dispatched before, by an earlier host or before the run was last
    /// dropped from memory: a layer that counts has counted it.
    pub again: bool,
    /// The blueprint's name.
    pub blueprint: Arc<str>,
    /// The hash of its bundle, in hex.
    pub version: Arc<str>,
    /// The agent whose task it is.
    pub agent: Arc<str>,
    /// The operator that is to execute it.
    pub operator: Arc<str>,
    /// The tools that the agent may use.
    pub tools: Vec<String>,
    /// What the call names for its deduplication.
    pub idempotency_key: Option<String>,
    /// Who started the run: a token's subject.
    pub principal: Arc<str>,
    /// When the run began, in Unix milliseconds.
    pub started_ms: u64,
    /// What the run had used before this dispatch, as far as it was reported.
    pub used: Usage,
    /// Where layers tell the run something.
    pub voice: Arc<dyn Voice>,
    /// What its operator may call, once every layer has let it pass.
    pub(crate) allowed: OnceLock<Option<Vec<String>>>,
    /// Whether it was settled by another way than its dispatch.
    pub(crate) over: AtomicBool,
    /// Whether every layer has let it pass since it was dispatched last.
    pub(crate) passed: AtomicBool,
}

impl About {
    /// The first attempt of a task, of a run that begins with it and that nobody listens to; for
    /// stacks without a host.
    pub fn new(run: RunId, task: TaskId, agent: &str, operator: &str) -> Self {
        Self {
            run,
            task,
            attempt: 1,
            epoch: 1,
            again: false,
            blueprint: "".into(),
            version: "".into(),
            agent: agent.into(),
            operator: operator.into(),
            tools: Vec::new(),
            idempotency_key: None,
            principal: "".into(),
            started_ms: run.created_ms(),
            used: Usage::default(),
            voice: Arc::new(Mute),
            allowed: OnceLock::new(),
            over: AtomicBool::new(false),
            passed: AtomicBool::new(false),
        }
    }

    /// Says what its operator may call.
    pub(crate) fn allow(&self, operators: Option<Vec<String>>) {
        // An attempt is dispatched once.
        let _ = self.allowed.set(operators);
    }

    /// What its operator may call, if that was said.
    pub(crate) fn allowed(&self) -> Option<Option<Vec<String>>> {
        self.allowed.get().cloned()
    }

    /// Marks it as settled by another way than its dispatch.
    pub(crate) fn give_up(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Marks it as let pass by every layer.
    pub(crate) fn pass(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Whether every layer has let it pass.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// Whether it was settled by another way than its dispatch.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The same, with somebody else who hears what layers say.
    pub(crate) fn heard_by(&self, voice: Arc<dyn Voice>) -> Self {
        Self {
            run: self.run,
            task: self.task,
            attempt: self.attempt,
            epoch: self.epoch,
            again: self.again,
            blueprint: Arc::clone(&self.blueprint),
            version: Arc::clone(&self.version),
            agent: Arc::clone(&self.agent),
            operator: Arc::clone(&self.operator),
            tools: self.tools.clone(),
            idempotency_key: self.idempotency_key.clone(),
            principal: Arc::clone(&self.principal),
            started_ms: self.started_ms,
            used: self.used.clone(),
            voice,
            allowed: self.allowed.clone(),
            over: AtomicBool::new(self.is_over()),
            passed: AtomicBool::new(self.has_passed()),
        }
    }
}

/// What a layer can tell a run.
pub trait Voice: Send + Sync {
    /// Puts an event on the run's stream, numbered and durable.
    fn say(&self, event: LifecycleEvent);

    /// Lets the run rest until somebody resumes it.
    fn pause(&self, reason: String);
}

/// A voice that nobody hears, for dispatches without a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mute;

impl Voice for Mute {
    fn say(&self, _: LifecycleEvent) {}

    fn pause(&self, _: String) {}
}

/// What came of a dispatch that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Dispatched {
    /// It was executed.
    Done(TaskDone),
    /// It was executed and fell short: its step fails, and what it wants done is done all the
    /// same, in the same commit.
    Short(Box<Short>),
    /// Its worker lives elsewhere and reports through the worker API.
    Parked,
}

/// An executed task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDone {
    /// Its value.
    pub output: Json,
    /// What it used, if that was reported.
    pub usage: Option<Usage>,
    /// What it wants done.
    pub effects: Vec<Effect>,
}

/// An execution that ended before its task was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Short {
    /// Why.
    pub failure: Failure,
    /// What it used, if that was reported.
    pub usage: Option<Usage>,
    /// What it wants done.
    pub effects: Vec<Effect>,
}

/// What lies below the last layer.
#[async_trait]
pub trait Terminal: Send + Sync {
    /// Hands the dispatch to its operator.
    ///
    /// # Errors
    /// The attempt's failure.
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure>;
}

impl TaskDone {
    /// A value that used and wants nothing.
    pub fn new(output: Json) -> Self {
        Self { output, usage: None, effects: Vec::new() }
    }
}

impl From<Failure> for Short {
    fn from(failure: Failure) -> Self {
        Self { failure, usage: None, effects: Vec::new() }
    }
}

impl Deref for Dispatch {
    type Target = About;

    fn deref(&self) -> &About {
        &self.about
    }
}

/// Without the input: a log may show a dispatch, never what it carries.
impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.fmt(f)
    }
}

impl fmt::Debug for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch")
            .field("run", &self.run.to_string())
            .field("task", &self.task.to_string())
            .field("attempt", &self.attempt)
            .field("epoch", &self.epoch)
            .field("agent", &self.agent)
            .field("operator", &self.operator)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}
