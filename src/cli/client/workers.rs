//! The requests of workers for one attempt, and what answers say about time.

use std::{sync::atomic::Ordering, time::Duration};

use anyhow::{Context, Result};
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{
    Method,
    header::{DATE, HeaderMap},
};
use serde_json::{Value, json};

use super::Client;
use crate::engine::{HeartbeatView, LeaseView, PromptView};

impl Client {
    /// Waits for tasks of a queue; none if none came in time. The whole answer comes `within` a
    /// time, which is longer than the wait in the body.
    pub async fn lease(&self, body: &Value, within: Duration) -> Result<Vec<LeaseView>> {
        let request = self.request(Method::POST, "/v1/worker/lease", &[])?.json(body);
        let response = self.send(request.timeout(within)).await?;
        if response.status().as_u16() == 204 {
            return Ok(Vec::new());
        }
        response.json().await.context("read the leased tasks")
    }

    /// Returns the prompt for the holder of this token.
    pub async fn prompt(&self) -> Result<PromptView> {
        self.get("/v1/worker/prompt", &[]).await
    }

    /// Reports the result of the task that this token is for.
    pub async fn report(&self, body: &Value) -> Result<Value> {
        self.post("/v1/worker/result", body).await
    }

    /// Keeps the lease, and hears whether to stop.
    pub async fn heartbeat(&self) -> Result<HeartbeatView> {
        self.post("/v1/worker/heartbeat", &json!({})).await
    }

    /// Returns the latest time that it can have been at the daemon at its last answer, in Unix
    /// milliseconds: a `Date` has whole seconds. None if no answer said it.
    pub fn daemon_ms(&self) -> Option<u64> {
        let date_ms = self.date_ms.load(Ordering::Relaxed);
        (date_ms > 0).then(|| date_ms.saturating_add(1_000))
    }

    /// Keeps the time that an answer says.
    pub(super) fn note_date(&self, headers: &HeaderMap) {
        let text = headers.get(DATE).and_then(|it| it.to_str().ok());
        let at = text.and_then(|it| DateTimeParser::new().parse_timestamp(it).ok());
        let date_ms = at.and_then(|at| u64::try_from(at.as_millisecond()).ok());
        self.date_ms.store(date_ms.unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::timeout};

    use super::*;
    use crate::cli::{
        exit::{Exit, judge},
        fixture,
    };

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_daemon_that_accepts_a_request_for_tasks_and_never_answers_is_not_waited_for() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::new(&url, "t").unwrap();
        let body = json!({"queue": "q"});
        let asks = client.lease(&body, Duration::from_millis(100));
        let error = timeout(LONG, asks).await.expect("it has a limit").unwrap_err();
        assert_eq!(judge(&error).0, Exit::Unavailable, "{error:#}");
        assert!(error.to_string().contains("does not answer"), "{error:#}");
    }

    #[tokio::test]
    async fn the_time_at_the_daemon_is_that_of_its_last_answer() {
        let server = fixture::serve(vec![(204, String::new())]).await;
        let client = Client::new(&server.url, "t").unwrap();
        assert_eq!(client.daemon_ms(), None);
        let other = client.with_token("wh_a");
        assert!(other.lease(&json!({"queue": "q"}), LONG).await.unwrap().is_empty());
        // The fixture says 2026-01-01T00:00:00Z.
        assert_eq!(client.daemon_ms(), Some(1_767_225_601_000));
    }
}
