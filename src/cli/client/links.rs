//! Requests about links.

use anyhow::Result;
use serde_json::Value;

use super::Client;
use crate::protocol::TaskId;

impl Client {
    /// Makes a link with which a person answers a task.
    pub async fn link(&self, task: TaskId, body: &Value) -> Result<Value> {
        self.post(&format!("/v1/tasks/{task}/links"), body).await
    }
}
