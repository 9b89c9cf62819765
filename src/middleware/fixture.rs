//! Dispatches for tests.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{About, Dispatch, Dispatched, TaskDone, Terminal, Voice};
use crate::protocol::{Failure, Json, LifecycleEvent, OperatorConfig, RunId, TaskId};

/// Returns a dispatch of agent `counter` to operator `echo`.
pub(crate) fn dispatch(input: &str) -> Dispatch {
    with(input, |_| {})
}

/// Returns the same dispatch with changed metadata.
pub(crate) fn with(input: &str, change: impl FnOnce(&mut About)) -> Dispatch {
    let (run, at_ms) = (RunId::new(7, 1_700_000_000_000), 1_700_000_000_000);
    let mut about = About::new(run, TaskId::new(7, 3, at_ms), "counter", "echo");
    about.principal = "root".into();
    about.blueprint = "b".into();
    about.version = "0123".into();
    change(&mut about);
    Dispatch {
        about: Arc::new(about),
        input: Json::parse(input).expect("the test wrote JSON"),
        config: OperatorConfig::default(),
        route: None,
        payload: Arc::new(()),
    }
}

/// Returns its input.
pub(crate) struct Echo;

#[async_trait]
impl Terminal for Echo {
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        Ok(Dispatched::Done(TaskDone::new(dispatch.input)))
    }
}

/// Parks every dispatch.
pub(crate) struct Parks;

#[async_trait]
impl Terminal for Parks {
    async fn dispatch(&self, _: Dispatch) -> Result<Dispatched, Failure> {
        Ok(Dispatched::Parked)
    }
}

/// Calls a function, and counts the calls.
pub(crate) struct Does<F>(pub(crate) AtomicU32, pub(crate) F);

impl<F> Does<F> {
    pub(crate) fn new(does: F) -> Self {
        Self(AtomicU32::new(0), does)
    }

    pub(crate) fn calls(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl<F> Terminal for Does<F>
where
    F: Fn(Dispatch) -> Result<Dispatched, Failure> + Send + Sync,
{
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        (self.1)(dispatch)
    }
}

/// Records the events of layers.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<String>>);

impl Heard {
    /// Returns every event so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Voice for Heard {
    fn say(&self, event: LifecycleEvent) {
        self.0.lock().push(event.data().to_string());
    }

    fn pause(&self, reason: String) {
        self.0.lock().push(format!("pause: {reason}"));
    }
}
