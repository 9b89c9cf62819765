//! Requests about the scopes of state.

use anyhow::Result;

use super::{Client, List};
use crate::engine::ScopeView;

impl Client {
    /// The scopes that have state.
    pub async fn state_scopes(&self, prefix: &str) -> Result<Vec<ScopeView>> {
        let mut query = vec![("limit", "500".to_owned()), ("prefix", prefix.to_owned())];
        let mut all = Vec::new();
        loop {
            let page: List<ScopeView> = self.get("/v1/state", &query).await?;
            all.extend(page.items);
            let Some(cursor) = page.next_cursor else { return Ok(all) };
            query.retain(|(name, _)| *name != "cursor");
            query.push(("cursor", cursor));
        }
    }
}
