//! The services of the host that operators need.

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

/// The services of the host that operators need.
pub struct Builtin {
    /// Calls the Lua function of an agent.
    pub lua: LuaCall,
    /// Returns the directory of a blueprint's files for its child processes.
    pub bundle_dir: BundleDir,
    /// The queues that pull workers lease from.
    pub queues: Arc<QueueHub>,
    /// The connected sessions.
    pub sessions: Arc<session::Hub>,
    /// The environments of child processes.
    pub environments: Arc<Environments>,
    /// The clock of deadlines.
    pub clock: Clock,
    /// Canceled when the host begins to stop.
    pub stopping: CancellationToken,
}

impl Builtin {
    /// Returns the operator that runs child processes.
    pub(super) fn process(&self) -> Process {
        Process::new(Arc::clone(&self.bundle_dir), Arc::clone(&self.environments))
    }
}
