//! The request to a webhook, and its time limits.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::Serialize;
use tokio::{sync::OnceCell, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, Answered},
    settings::HttpSettings,
};
use crate::{
    clock::Clock,
    environment::{
        BodyError, BodyLimit, Egress, EgressError, Scrubber, Secret, Text, innermost, read_body,
        retry_after,
    },
    operator::{
        Backend, Builtin, Delivery, Reply, Residence, Settings, ShownSettings, Task,
        outgoing::{self, refused},
    },
    protocol::{Failure, Json, RunId, TaskId, failure::kind},
};

/// Posts each attempt to a webhook.
#[derive(Debug)]
pub(super) struct Webhook {
    settings: HttpSettings,
    egress: Egress,
    client: OnceCell<Client>,
    clock: Clock,
    pub(super) stopping: CancellationToken,
}

/// The body of the request to a webhook.
#[derive(Serialize)]
struct Order<'a> {
    task: TaskId,
    run: RunId,
    agent: &'a str,
    attempt: u32,
    /// The conversation that the task belongs to.
    session: Option<String>,
    system: Option<String>,
    prompt: &'a str,
    input: &'a Json,
    output_schema: Option<&'a Json>,
    /// The end of the attempt, if it is accepted now.
    deadline: Option<String>,
    handle: &'a str,
    result_url: Option<String>,
    idempotency_key: &'a str,
}

impl Webhook {
    pub(super) fn new(settings: HttpSettings, builtin: &Builtin) -> Self {
        Self {
            egress: settings.egress(),
            settings,
            client: OnceCell::new(),
            clock: builtin.clock.clone(),
            stopping: builtin.stopping.clone(),
        }
    }

    /// Posts one attempt and reads the response.
    async fn post(&self, task: &Task, input: &Json) -> Result<Answered, Failure> {
        self.egress.check(&self.settings.url).map_err(|error| refused(&error))?;
        let client = self
            .client
            .get_or_try_init(|| async { self.egress.client() })
            .await
            .map_err(|error| refused(&error))?;
        let key = format!("{}.{}", task.id, task.attempt);
        let body = serde_json::to_vec(&self.order(task, input, &key)).expect("plain data");
        let mut secrets = Scrubber::default();
        let sent = client
            .post(self.settings.url.clone())
            .headers(self.headers(&key, task, &mut secrets)?)
            .body(body)
            .send()
            .await
            .map_err(|error| not_sent(&error))?;
        let (status, now_ms) = (sent.status(), self.clock.now_ms());
        let retry_after_ms = retry_after(sent.headers(), now_ms).map(millis);
        if status == StatusCode::ACCEPTED {
            return Ok(Answered::Later);
        }
        // A webhook that echoes its headers must not put their secrets into the history.
        let body = secrets.scrub(self.body(sent).await?);
        answer::read(status, retry_after_ms, &body, self.settings.answer)
    }

    fn order<'a>(&self, task: &'a Task, input: &'a Json, key: &'a str) -> Order<'a> {
        let prompt = task.prompt.as_deref();
        let base = self.settings.public_url.as_ref().map(reqwest::Url::as_str);
        let base = base.or(task.url.as_deref()).map(|base| base.trim_end_matches('/'));
        let deadline = self.clock.now_ms().saturating_add(millis(self.timeout_of(task)));
        Order {
            task: task.id,
            run: task.run,
            agent: &task.agent_name,
            attempt: task.attempt,
            session: task.opts.session_of(),
            system: task.system(),
            prompt: prompt.map_or("", |prompt| &prompt.prompt),
            input,
            output_schema: task.agent.output.as_ref(),
            deadline: i64::try_from(deadline)
                .ok()
                .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
                .map(|at| at.to_string()),
            handle: &task.handle,
            result_url: base.map(|base| format!("{base}/v1/worker/result")),
            idempotency_key: task.opts.idempotency_key.as_deref().unwrap_or(key),
        }
    }

    fn headers(
        &self,
        key: &str,
        task: &Task,
        secrets: &mut Scrubber,
    ) -> Result<HeaderMap, Failure> {
        let asked = |name: &str, text: &Text, got: Result<&Secret, &str>| {
            let failed = got.err().map(str::to_owned);
            if let Some(mut event) = text.accessed(name, failed, self.clock.now_ms()) {
                event.operator_id = Some(task.agent_name.to_string());
                task.reporter.secret_accessed(event);
                got.iter().for_each(|secret| secrets.add(name, secret));
            }
        };
        let mut headers = outgoing::headers(&self.settings.headers, asked)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let key = HeaderValue::from_str(key).expect("ids are plain ASCII");
        headers.insert("idempotency-key", key);
        outgoing::trace(&mut headers, task);
        Ok(headers)
    }

    /// Returns the body of a response, up to the limit.
    async fn body(&self, answer: Response) -> Result<Vec<u8>, Failure> {
        let (most, silence) = (self.settings.max_answer(), self.settings.silence);
        let limit = BodyLimit { bytes: most, silence: Some(silence) };
        let mut body = Vec::new();
        let read = read_body(answer, limit, &mut body).await;
        read.map(|()| body).map_err(|error| match error {
            BodyError::TooLarge => {
                let message = format!(
                    "the webhook's answer has more than {most} bytes; a large result can be \
                     answered with 202 and come as an artifact"
                );
                Failure::new(kind::LIMIT, message)
            }
            BodyError::Silent => {
                let message = format!("the webhook was silent for {silence:?} in its answer");
                Failure::new(kind::TIMEOUT, message).retryable()
            }
            BodyError::Failed(error) => not_sent(&error),
        })
    }

    fn timeout_of(&self, task: &Task) -> Duration {
        let own = task.opts.timeout_ms.or(task.agent.timeout_ms);
        own.map_or(self.settings.timeout, Duration::from_millis)
    }
}

#[async_trait]
impl Backend for Webhook {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    fn redelivers(&self) -> bool {
        true
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.settings.timeout)
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let within = self.settings.answer_within.min(self.timeout_of(&task));
        let answered = tokio::select! {
            biased;
            () = task.cancel.cancelled() => {
                return Err(Failure::new(kind::CANCELED, "the attempt was given up"));
            }
            // The report came first: the response no longer counts.
            () = task.reported.cancelled() => return Ok(Reply::Parked),
            // Not delivered: it is posted again, under the same key, after the restart of the host.
            () = self.stopping.cancelled() => return Ok(Reply::Parked),
            answered = timeout(within, self.post(&task, &input)) => answered,
        };
        let Ok(answered) = answered else {
            let message = format!("the webhook did not answer within {within:?}");
            return Err(Failure::new(kind::TIMEOUT, message).retryable());
        };
        match answered? {
            Answered::Done(done) => Ok(Reply::Done(done)),
            Answered::Short(short) => Ok(Reply::Short(short)),
            Answered::Later => {
                let host = self.settings.url.host_str().unwrap_or_default();
                task.reporter.delivered(Delivery { worker: host.to_owned() });
                Ok(Reply::Parked)
            }
        }
    }
}

/// Returns the failure of a request that was not sent, or whose response was cut off.
fn not_sent(error: &reqwest::Error) -> Failure {
    if let Some(error) = EgressError::within(error) {
        return refused(error);
    }
    let reason = innermost(error);
    let what = if error.is_connect() { "reach the webhook" } else { "hear the webhook out" };
    Failure::new(kind::OPERATOR_UNAVAILABLE, format!("failed to {what}: {reason}")).retryable()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Settings for HttpSettings {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Webhook::new(self.clone(), builtin))
    }

    fn shown(&self) -> ShownSettings {
        let (answer, egress) = (self.answer.as_str(), self.egress());
        let shown = ShownSettings::default()
            .url("url", &self.url)
            .headers("headers", &self.headers)
            .with("answer", answer)
            .time("answer_within", self.answer_within)
            .time("silence", self.silence)
            .time("timeout", self.timeout)
            .with("max_answer", self.max_answer())
            .with("allow_private", egress.allow_private)
            .list("allow_hosts", &egress.allow_hosts);
        match &self.public_url {
            Some(url) => shown.url("public_url", url),
            None => shown,
        }
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        self.egress().probe(&self.url).await.map_err(|error| format!("failed to {error}"))?;
        for text in self.headers.values() {
            text.resolve().map_err(|error| format!("failed to {error}"))?;
        }
        let host = self.url.host_str().unwrap_or_default();
        Ok(format!("posts to {host}, which resolves and is allowed"))
    }
}
