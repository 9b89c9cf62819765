//! What operators need from the host that they are built in.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{BundleDir, Process, QueueHub, Task};
use crate::{
    clock::Clock,
    environment::Environments,
    protocol::{Failure, Json},
    session,
};

/// Calls the `fn` of a task's agent with an input, off the caller's thread.
pub type LuaCall =
    Arc<dyn Fn(Arc<Task>, Json) -> BoxFuture<'static, Result<Json, Failure>> + Send + Sync>;

/// What operators need from the host.
pub struct Builtin {
    /// How an agent's Lua function is called.
    pub lua: LuaCall,
    /// Where a blueprint's files are for its child processes.
    pub bundle_dir: BundleDir,
    /// The queues that pull workers lease from.
    pub queues: Arc<QueueHub>,
    /// The sessions that operate.
    pub sessions: Arc<session::Hub>,
    /// Where children run.
    pub environments: Arc<Environments>,
    /// What deadlines are told by.
    pub clock: Clock,
    /// Canceled when the host begins to stop.
    pub stopping: CancellationToken,
}

impl Builtin {
    /// The operator that runs children.
    pub(super) fn process(&self) -> Process {
        Process::new(Arc::clone(&self.bundle_dir), Arc::clone(&self.environments))
    }
}
