//! The seam: something that starts workers, and what it starts.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

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

/// An attempt that is under way.
#[async_trait]
pub trait Worker: Send {
    /// Names the worker in logs.
    fn id(&self) -> &str;

    /// Cancel it to give the attempt up.
    fn cancel_token(&self) -> &CancellationToken;

    /// Waits for what becomes of the attempt.
    ///
    /// # Errors
    /// The failure that ends the attempt.
    async fn join(self: Box<Self>) -> Result<Reply, Failure>;
}
