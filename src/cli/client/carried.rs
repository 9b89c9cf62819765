//! Requests that carry those of many attempts.

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Client, List};
use crate::cli::exit::Stop;

/// The answer to one of them.
#[derive(Debug, Deserialize)]
struct Item {
    status: u16,
    #[serde(default)]
    problem: Value,
    #[serde(flatten)]
    answer: Value,
}

/// The answer to the heartbeat of an attempt.
#[derive(Debug, Deserialize)]
pub struct HeartbeatAnswer {
    /// RFC 3339, UTC.
    pub deadline: Option<String>,
    /// True if the worker should stop.
    pub cancel: bool,
}

impl Client {
    /// Reports the results of many attempts: pairs of a handle and a body of `report`. Each has its own
    /// answer, in their order.
    pub async fn report_all(&self, reports: &[(String, Value)]) -> Result<Vec<Result<()>>> {
        let items = reports.iter();
        let items = items.map(|(handle, body)| json!({"handle": handle, "result": body}));
        let body = json!({ "results": items.collect::<Vec<_>>() });
        let page: List<Item> = self.post("/v1/worker/results", &body).await?;
        Ok(page.items.into_iter().map(|item| item.read().map(drop)).collect())
    }

    /// Keeps the leases of many attempts. Each has its own answer, in their order.
    pub async fn heartbeat_all(&self, handles: &[String]) -> Result<Vec<Result<HeartbeatAnswer>>> {
        let body = json!({ "handles": handles });
        let page: List<Item> = self.post("/v1/worker/heartbeats", &body).await?;
        Ok(page.items.into_iter().map(|item| Ok(serde_json::from_value(item.read()?)?)).collect())
    }
}

impl Item {
    fn read(self) -> Result<Value> {
        match self.status {
            200..300 => Ok(self.answer),
            status => Err(Stop::from_response(status, &self.problem.to_string()).into()),
        }
    }
}
