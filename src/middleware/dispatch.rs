//! One dispatch and its outcome.

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
use parking_lot::Mutex;

use super::promise::Promise;
use crate::{
    flow::KeyOwner,
    journal::Usage,
    protocol::{Effect, Failure, Json, LifecycleEvent, OperatorConfig, RunId, TaskId},
};

/// One attempt that is dispatched to an operator.
pub struct Dispatch {
    /// The metadata of the attempt.
    pub about: Arc<About>,
    /// The input of the agent.
    pub input: Json,
    /// Settings that override the operator's defaults; only for operators that support them.
    pub config: OperatorConfig,
    /// The operator that executes the task in place of the one that it names. It must have the same
    /// residence: in the host, or elsewhere.
    pub route: Option<Arc<str>>,
    /// Data for the terminal; layers pass it on unread.
    pub payload: Arc<dyn Any + Send + Sync>,
}

/// Returns a result in the form in which a layer may store it; `None` if its agent refuses it.
pub(crate) type Storable = Arc<dyn Fn(&Json) -> Option<Json> + Send + Sync>;

/// The metadata of an attempt; the same for the dispatch and for its settlement.
pub struct About {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The run's epoch.
    pub epoch: u32,
    /// True if this attempt was already dispatched, by an earlier host or before the run was last
    /// dropped from memory: a layer that counts has counted it.
    pub again: bool,
    /// The blueprint's name.
    pub blueprint: Arc<str>,
    /// The hash of its bundle, in hex.
    pub version: Arc<str>,
    /// The agent whose task it is.
    pub agent: Arc<str>,
    /// The operator that executes it.
    pub operator: Arc<str>,
    /// True if people execute it.
    pub asks_people: bool,
    /// True if it is a call of a model within a loop, whose costs the loop reports.
    pub model_call: bool,
    /// The tools that the agent may use.
    pub tools: Vec<String>,
    /// The idempotency key of the call.
    pub idempotency_key: Option<String>,
    /// The composite that the key belongs to, if the task is one of its members.
    pub(crate) key_owner: Option<Arc<KeyOwner>>,
    /// The subject that started the run.
    pub principal: Arc<str>,
    /// The start of the run, in Unix milliseconds.
    pub started_ms: u64,
    /// The reported usage of the run before this dispatch.
    pub used: Usage,
    /// The interface through which layers emit events.
    pub voice: Arc<dyn Voice>,
    /// The form in which results are stored; as they are if absent.
    pub(crate) storable: Option<Storable>,
    /// The values that layers store once an engine has accepted the result; absent without one.
    pub(crate) promises: Option<Mutex<Vec<Promise>>>,
    /// The operators that this attempt may call, once every layer has passed it.
    pub(crate) allowed: OnceLock<Option<Vec<String>>>,
    /// True if the attempt was settled in a way other than its dispatch.
    pub(crate) over: AtomicBool,
    /// True if every layer has passed the last dispatch.
    pub(crate) passed: AtomicBool,
}

impl About {
    /// Returns the metadata of the first attempt of a task, in a run that starts with it and
    /// without a listener for events; for stacks without a host.
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
            asks_people: false,
            model_call: false,
            tools: Vec::new(),
            idempotency_key: None,
            key_owner: None,
            principal: "".into(),
            started_ms: run.created_ms(),
            used: Usage::default(),
            voice: Arc::new(Mute),
            storable: None,
            promises: None,
            allowed: OnceLock::new(),
            over: AtomicBool::new(false),
            passed: AtomicBool::new(false),
        }
    }

    /// Returns a result in the form in which a layer may store it: without what is redacted, and
    /// only if the agent accepts it.
    pub(crate) fn storable(&self, output: &Json) -> Option<Json> {
        self.storable.as_ref().map_or_else(|| Some(output.clone()), |storable| storable(output))
    }

    /// Stores a value once the engine has accepted the result of the attempt; at once if there is no
    /// engine.
    pub(crate) fn promise(&self, promise: Promise) {
        match &self.promises {
            Some(promises) => promises.lock().push(promise),
            None => promise.post(),
        }
    }

    /// Takes what layers have promised so far.
    pub(crate) fn take_promises(&self) -> Vec<Promise> {
        let promises = self.promises.as_ref();
        promises.map(|promises| std::mem::take(&mut *promises.lock())).unwrap_or_default()
    }

    /// Sets the operators that the attempt may call.
    pub(crate) fn allow(&self, operators: Option<Vec<String>>) {
        // An attempt is dispatched once.
        let _ = self.allowed.set(operators);
    }

    /// Returns the operators that the attempt may call, once they are known.
    pub(crate) fn allowed(&self) -> Option<Option<Vec<String>>> {
        self.allowed.get().cloned()
    }

    /// Marks the attempt as settled in a way other than its dispatch. What layers have promised with
    /// the outcome of that is void, and the other outcome decides over the keys that they hold.
    pub(crate) fn give_up(&self) {
        self.over.store(true, Ordering::Release);
        self.take_promises().into_iter().for_each(Promise::take_back);
    }

    /// Marks the dispatch as passed by every layer.
    pub(crate) fn pass(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Returns true if every layer has passed the dispatch.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// Returns true if the attempt was settled in a way other than its dispatch.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns a copy with another receiver of events, and without what layers have promised.
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
            asks_people: self.asks_people,
            model_call: self.model_call,
            tools: self.tools.clone(),
            idempotency_key: self.idempotency_key.clone(),
            key_owner: self.key_owner.clone(),
            principal: Arc::clone(&self.principal),
            started_ms: self.started_ms,
            used: self.used.clone(),
            voice,
            storable: self.storable.clone(),
            promises: self.promises.as_ref().map(|_| Mutex::default()),
            allowed: self.allowed.clone(),
            over: AtomicBool::new(self.is_over()),
            passed: AtomicBool::new(self.has_passed()),
        }
    }
}

/// The interface through which layers emit events of a run.
pub trait Voice: Send + Sync {
    /// Emits an event on the stream of the run, numbered and durable.
    fn say(&self, event: LifecycleEvent);

    /// Pauses the run until it is resumed.
    fn pause(&self, reason: String);
}

/// Discards events, for dispatches without a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mute;

impl Voice for Mute {
    fn say(&self, _: LifecycleEvent) {}

    fn pause(&self, _: String) {}
}

/// The outcome of a dispatch that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Dispatched {
    /// The task was executed.
    Done(TaskDone),
    /// The task was executed with an incomplete result: its step fails, but its effects are
    /// applied in the same commit.
    Short(Box<Short>),
    /// Its worker is elsewhere and reports through the worker API.
    Parked,
}

/// An executed task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDone {
    /// The value.
    pub output: Json,
    /// The usage, if it was reported.
    pub usage: Option<Usage>,
    /// The effects to apply.
    pub effects: Vec<Effect>,
}

/// An execution that ended before its task was complete.
#[derive(Debug, Clone, PartialEq)]
pub struct Short {
    /// The reason.
    pub failure: Failure,
    /// The usage, if it was reported.
    pub usage: Option<Usage>,
    /// The effects to apply.
    pub effects: Vec<Effect>,
}

/// The end of the stack, below the last layer.
#[async_trait]
pub trait Terminal: Send + Sync {
    /// Passes the dispatch to its operator.
    ///
    /// # Errors
    /// Returns the failure of the attempt.
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure>;
}

impl TaskDone {
    /// Returns a value without usage and effects.
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

/// Omits the input: a log may contain a dispatch, but never its content.
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
