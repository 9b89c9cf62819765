//! Requests about the host.

use std::time::Duration;

use anyhow::Result;
use reqwest::Method;
use serde_json::Value;

use super::{Client, List, read};
use crate::engine::{EraseView, HostView, NodeView};

impl Client {
    /// The host.
    pub async fn host(&self) -> Result<HostView> {
        self.get("/v1/host", &[]).await
    }

    /// The nodes of the cluster.
    pub async fn nodes(&self) -> Result<Vec<NodeView>> {
        let page: List<NodeView> = self.get("/v1/nodes", &[]).await?;
        Ok(page.items)
    }

    /// Succeeds if the daemon answers at all; without a token.
    pub async fn healthy(&self, within: Duration) -> Result<()> {
        let mut url = self.base.clone();
        url.set_path("/healthz");
        self.send(self.http.get(url).timeout(within)).await.map(drop)
    }

    /// Erases, or says what would be erased.
    pub async fn erase(&self, body: &Value) -> Result<EraseView> {
        let request = self.request(Method::POST, "/v1/erase", &[])?;
        read(self.send(request.json(body)).await?).await
    }
}
