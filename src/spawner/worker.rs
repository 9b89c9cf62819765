//! The seam: something that starts workers, and what it starts.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    operator::{Reply, Task},
    protocol::{Failure, Json},
};

/// Starts workers.
#[async_trait]
pub trait SpawnerAdapter: Send + Sync {
    /// Starts a worker on one attempt of a task.
    ///
    /// # Errors
    /// When there is nobody to start; the attempt then failed.
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure>;
}

/// An attempt that is under way; its task has the token that cancels it.
#[async_trait]
pub trait Worker: Send {
    /// Waits for what becomes of the attempt.
    ///
    /// # Errors
    /// The failure that ends the attempt.
    async fn join(self: Box<Self>) -> Result<Reply, Failure>;
}
