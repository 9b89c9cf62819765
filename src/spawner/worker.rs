//! The traits of the seam: a spawner, and the workers that it starts.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    operator::{Reply, Task},
    protocol::{Failure, Json},
};

/// Starts workers.
#[async_trait]
pub trait SpawnerAdapter: Send + Sync {
    /// Starts a worker for one attempt of a task.
    ///
    /// # Errors
    /// Fails when no worker can be started; the attempt has then failed.
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure>;
}

/// An attempt in progress; its task has the token that cancels it.
#[async_trait]
pub trait Worker: Send {
    /// Waits for the outcome of the attempt.
    ///
    /// # Errors
    /// Returns the failure that ends the attempt.
    async fn join(self: Box<Self>) -> Result<Reply, Failure>;
}
