//! Requests about queues and pull workers.

use anyhow::Result;

use super::{Client, List};
use crate::engine::{QueueView, WorkerView};

impl Client {
    /// The queues.
    pub async fn queues(&self) -> Result<Vec<QueueView>> {
        let page: List<QueueView> = self.get("/v1/queues", &[]).await?;
        Ok(page.items)
    }

    /// The pull workers.
    pub async fn workers(&self) -> Result<Vec<WorkerView>> {
        let page: List<WorkerView> = self.get("/v1/workers", &[]).await?;
        Ok(page.items)
    }
}
