//! Requests about triggers.

use anyhow::Result;
use reqwest::Method;
use serde_json::Value;

use super::{ANSWER, Client, List, fresh_key, read, segment};
use crate::engine::{Made, TriggerEntry};

impl Client {
    /// The triggers of all blueprints, or of one.
    pub async fn triggers(&self, blueprint: Option<&str>) -> Result<Vec<TriggerEntry>> {
        let mut query: Vec<_> = vec![("limit", "500".to_owned())];
        query.extend(blueprint.map(|name| ("blueprint", name.to_owned())));
        let mut all = Vec::new();
        loop {
            let page: List<TriggerEntry> = self.get("/v1/triggers", &query).await?;
            all.extend(page.items);
            let Some(cursor) = page.next_cursor else { return Ok(all) };
            query.retain(|(name, _)| *name != "cursor");
            query.push(("cursor", cursor));
        }
    }

    /// Pauses or resumes a trigger.
    pub async fn move_trigger(&self, trigger: &str, act: &str) -> Result<TriggerEntry> {
        self.post(&format!("/v1/triggers/{}/{act}", segment(trigger)), &Value::Null).await
    }

    /// Starts the run of a trigger.
    pub async fn fire(&self, trigger: &str, payload: &Value) -> Result<Made> {
        let path = format!("/v1/triggers/{}/fire", segment(trigger));
        let request = self.request(Method::POST, &path, &[])?.timeout(ANSWER).json(payload);
        read(self.send(request.header("idempotency-key", fresh_key())).await?).await
    }
}
