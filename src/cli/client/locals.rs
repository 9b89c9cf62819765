//! Requests about the variables of flows.

use anyhow::Result;

use super::Client;
use crate::{engine::LocalsView, protocol::RunId};

impl Client {
    /// The variables of a run's flow at a step.
    pub async fn locals(&self, run: RunId, seq: u32) -> Result<LocalsView> {
        self.get(&format!("/v1/runs/{run}/steps/{seq}/locals"), &[]).await
    }
}
