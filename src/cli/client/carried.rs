//! Requests that carry those of many attempts.

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Client, List};
use crate::{cli::exit::Stop, engine::LeaseView};

/// The answer to one of them.
#[derive(Debug, Deserialize)]
struct Item {
    status: u16,
    #[serde(default)]
    problem: Value,
    #[serde(flatten)]
    answer: Value,
}

/// The answers to results, and the tasks that were leased with them.
#[derive(Debug, Deserialize)]
struct Reported {
    items: Vec<Item>,
    #[serde(default)]
    leased: Vec<LeaseView>,
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
    /// answer, in their order. With a body of `lease` the same request leases tasks.
    pub async fn report_all(
        &self,
        reports: &[(String, Value)],
        lease: Option<Value>,
    ) -> Result<(Vec<Result<()>>, Vec<LeaseView>)> {
        let items = reports.iter();
        let items = items.map(|(handle, body)| json!({"handle": handle, "result": body}));
        let mut body = json!({ "results": items.collect::<Vec<_>>() });
        if let Some(lease) = lease {
            body["lease"] = lease;
        }
        let Reported { items, leased } = self.post("/v1/worker/results", &body).await?;
        Ok((items.into_iter().map(|item| item.read().map(drop)).collect(), leased))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::{
            exit::{Exit, judge},
            fixture,
        },
        protocol::TaskId,
    };

    #[tokio::test]
    async fn results_bring_their_answers_and_the_leased_tasks() {
        let task = TaskId::new(7, 2, 1_767_225_600_000);
        let answer = json!({
            "items": [
                {"status": 200, "accepted": true, "repeated": false},
                {"status": 409, "problem": {"code": "fenced", "detail": "another attempt"}},
            ],
            "leased": [{"task": task, "handle": "wh_c", "deadline": "2026-01-01T00:01:00.000Z"}],
        });
        let server = fixture::serve(vec![(200, answer.to_string())]).await;
        let client = Client::new(&server.url, "t").unwrap();
        let reports = ["wh_a", "wh_b"].map(|it| (it.to_owned(), json!({"output": 1})));
        let lease = json!({"queue": "q", "max": 2});
        let (answers, leased) = client.report_all(&reports, Some(lease.clone())).await.unwrap();
        assert!(answers[0].is_ok());
        assert_eq!(judge(answers[1].as_ref().unwrap_err()).0, Exit::Conflict);
        assert_eq!((leased.len(), leased[0].task), (1, task));
        let asked = server.asked();
        let (_, body) = asked[0].split_once("\r\n\r\n").unwrap();
        assert_eq!(serde_json::from_str::<Value>(body).unwrap()["lease"], lease);
    }
}
