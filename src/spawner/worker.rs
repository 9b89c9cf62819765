//! The traits of the seam: a spawner, and the workers that it starts.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    operator::{Reply, Task},
    protocol::{Failure, Json, WorkerId},
};

/// Starts workers.
#[async_trait]
pub trait SpawnerAdapter: Send + Sync {
    /// Starts a worker for one attempt of a task: its work is under way when this returns.
    ///
    /// # Errors
    /// Fails when no worker can be started; the attempt has then failed.
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure>;

    /// Returns true if it does nothing but have each operator execute its tasks.
    fn only_executes(&self) -> bool {
        false
    }
}

/// An attempt in progress; its task has the token that cancels it.
#[async_trait]
pub trait Worker: Send {
    /// Returns its id: that of its attempt, [`Task::worker`](crate::operator::Task::worker).
    fn id(&self) -> WorkerId;

    /// Waits for the outcome of the attempt. Dropping the worker gives its work up.
    ///
    /// # Errors
    /// Returns the failure that ends the attempt.
    async fn join(self: Box<Self>) -> Result<Reply, Failure>;
}
