//! The handle of the engine.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
};

use tokio::sync::Semaphore;

use crate::{
    engine::shared::{shards::Shared, verified::Auth},
    lua::Watchdog,
};

/// The engine: cheap to clone; every method may be called from any task of its runtime.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) auth: Auth,
    pub(crate) booted: AtomicBool,
    /// Serializes long operations: copies and replays.
    pub(crate) heavy: Semaphore,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) threads: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}
