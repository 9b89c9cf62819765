//! Requests about the host.

use anyhow::Result;

use super::Client;
use crate::engine::HostView;

impl Client {
    /// The host.
    pub async fn host(&self) -> Result<HostView> {
        self.get("/v1/host", &[]).await
    }
}
