//! One request to a model provider: its limits, and the handling of the response.

use std::{borrow::Cow, fmt, pin::pin, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;
use reqwest::{
    Client, Response,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::{Map, Value};
use tokio::{sync::OnceCell, time::timeout};

use super::{
    draft::Draft,
    parts::Manner,
    price::Price,
    settings::{LlmSettings, Provider, Server},
    wrong::{Wrong, by_status},
};
use crate::{
    clock::Clock,
    environment::{EgressError, Scrubber, Secret, Text, innermost, retry_after},
    flow::response::message_item,
    middleware::{Short, TaskDone, value_of},
    operator::{
        Backend, Builtin, Delivery, LuaCall, ModelSource, Reply, Residence, Task, joined,
        llm::asker::{Asker, Hears},
        outgoing::{self, refused},
        plain::asked,
    },
    protocol::{
        Content, Failure, Json, ModelDelta, ModelReply, ModelRequest, ModelStop, failure::kind,
        sse::Cutter,
    },
};

/// The maximum number of bytes that are read of an error response.
const ERROR_BODY: usize = 64 * 1024;
/// The maximum number of pauses of a model in one answer.
const PAUSES: usize = 16;
/// The time limit of `doctor` for a provider.
const INSPECTION: Duration = Duration::from_secs(5);

/// Calls a model.
pub(super) struct Llm {
    pub(super) settings: LlmSettings,
    client: OnceCell<Client>,
    pub(super) clock: Clock,
    pub(super) lua: LuaCall,
}

/// A request whose answer is being received.
pub(super) struct Hearing<'a> {
    pub(super) asker: &'a Asker<'a>,
    pub(super) draft: Draft,
    secrets: Scrubber,
}

impl Llm {
    pub(super) fn new(settings: LlmSettings, builtin: &Builtin) -> Self {
        let (clock, lua) = (builtin.clock.clone(), Arc::clone(&builtin.lua));
        Self { settings, client: OnceCell::new(), clock, lua }
    }

    async fn reply(&self, asker: &Asker<'_>, input: &Json) -> Result<Reply, Failure> {
        let mut request: ModelRequest = input.decode().map_err(|error| {
            let message = format!("a model is asked with a conversation (`items`): {error}");
            Failure::new(kind::INVALID_INPUT, message)
        })?;
        if asker.addendum.is_some() {
            request.instructions = joined(request.instructions.as_deref(), asker.addendum);
        }
        let model = self.model(asker, &request)?;
        let options = self.options(&request);
        let mut hearing =
            Hearing { asker, draft: Draft::new(&*asker.seed), secrets: Scrubber::default() };
        let heard = match &self.settings.provider {
            Provider::Server(server) => {
                self.hear(server, &request, &options, &model, &mut hearing).await
            }
            Provider::Script(script) => script.play(self, &request, input, &mut hearing).await,
        };
        let answered = hearing.draft.model.clone();
        let price = answered.as_deref().and_then(|it| self.price(it)).or(self.price(&model));
        let usage = hearing.draft.tokens.usage(price);
        let reply =
            heard.and_then(|()| hearing.draft.reply(&model).map_err(|wrong| wrong.failure()));
        hearing.say();
        let secrets = hearing.secrets;
        match reply {
            Ok(reply) => {
                let output = Json::encode(&reply).expect("a reply is plain data");
                let output = match secrets.is_empty() {
                    true => output,
                    false => secrets.scrub_json(&output),
                };
                Ok(Reply::Done(TaskDone { output, usage, effects: Vec::new() }))
            }
            Err(failure) => {
                let failure = secrets.scrub_failure(failure);
                match usage {
                    None => Err(failure),
                    // The tokens that were received must be paid.
                    usage => {
                        Ok(Reply::Short(Box::new(Short { failure, usage, effects: Vec::new() })))
                    }
                }
            }
        }
    }

    /// Asks the model for an attempt: with the request of a loop's call, or with the message of a
    /// task that another operator passed on, whose value is then the model's text.
    async fn answer(&self, task: &Task, asker: &Asker<'_>, input: &Json) -> Result<Reply, Failure> {
        if !task.passed_on {
            return self.reply(asker, input).await;
        }
        let items = vec![message_item(&asked(task, input).message)];
        let request = ModelRequest { items, ..ModelRequest::default() };
        let request = Json::encode(&request).expect("a request is plain data");
        let mut done = match self.reply(asker, &request).await? {
            Reply::Done(done) => done,
            other => return Ok(other),
        };
        let reply: ModelReply = done.output.decode().expect("a model replies with a reply");
        if !matches!(reply.stop, ModelStop::End | ModelStop::ToolCalls) {
            let message = format!("the model did not end its answer: {:?}", reply.stop);
            let failure = Failure::new(kind::MODEL, message);
            let TaskDone { usage, effects, .. } = done;
            return Ok(Reply::Short(Box::new(Short { failure, usage, effects })));
        }
        done.output = value_of(&Content::text(reply.text()));
        Ok(Reply::Done(done))
    }

    /// Returns the model, in this order: a layer's choice, the request's, the agent's, the
    /// operator's.
    fn model(&self, asker: &Asker<'_>, request: &ModelRequest) -> Result<String, Failure> {
        let Asker { own, configured, .. } = asker;
        let changed = configured.filter(|model| Some(*model) != *own);
        let asked = changed.or(request.model.as_deref()).or(*own);
        match (asked.or(self.settings.model.as_deref()), &self.settings.provider) {
            (Some(model), _) => Ok(model.to_owned()),
            (None, Provider::Script(_)) => Ok("script".to_owned()),
            (None, Provider::Server(_)) => {
                let message = format!(
                    "operator {} has no `model`, and neither has agent {}",
                    asker.operator, asker.agent
                );
                Err(Failure::new(kind::REFUSED, message))
            }
        }
    }

    fn options(&self, request: &ModelRequest) -> Map<String, Value> {
        let mut options = self.settings.options.clone();
        options.extend(request.options.clone());
        options.retain(|_, value| !value.is_null());
        options
    }

    /// Returns the price of a model: of its exact name, otherwise of the longest name that it
    /// begins with, because providers append a date.
    fn price(&self, model: &str) -> Option<&Price> {
        let begins = self.settings.prices.iter().filter(|(name, _)| {
            model
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '@', ':']))
        });
        begins.max_by_key(|(name, _)| name.len()).map(|(_, price)| price)
    }

    /// Calls a server and receives its answer. A model that pauses is called again with its output
    /// so far.
    async fn hear(
        &self,
        server: &Server,
        request: &ModelRequest,
        options: &Map<String, Value>,
        model: &str,
        hearing: &mut Hearing<'_>,
    ) -> Result<(), Failure> {
        let mut request = Cow::Borrowed(request);
        let asked = request.items.len();
        for _ in 0..=PAUSES {
            let before = std::mem::take(&mut hearing.draft.tokens);
            let heard = self.hear_once(server, &request, options, model, hearing).await;
            hearing.draft.tokens.add(before);
            if !heard? {
                return Ok(());
            }
            let items = &mut request.to_mut().items;
            items.truncate(asked);
            items.extend(hearing.draft.items().iter().cloned());
            hearing.draft.stop = None;
        }
        let message = format!("the model paused more than {PAUSES} times in one answer");
        Err(Failure::new(kind::LIMIT, message))
    }

    /// Sends one request; returns true if the model paused.
    async fn hear_once(
        &self,
        server: &Server,
        request: &ModelRequest,
        options: &Map<String, Value>,
        model: &str,
        hearing: &mut Hearing<'_>,
    ) -> Result<bool, Failure> {
        server.egress.check(&server.url).map_err(|error| refused(&error))?;
        let client = self
            .client
            .get_or_try_init(|| async { server.egress.client_within(server.connect) })
            .await
            .map_err(|error| refused(&error))?;
        let manner = Manner {
            model,
            max_tokens_as: &server.max_tokens_as,
            send_reasoning: server.send_reasoning,
        };
        let body = server.wire.body(request, options, manner)?;
        let body = serde_json::to_vec(&body).expect("a body is plain data");
        let headers = self.headers(server, hearing)?;
        let sent = client.post(server.url.clone()).headers(headers).body(body).send();
        let mut sent = pin!(timeout(server.first_byte, sent));
        // The request is sent before its delivery is reported, so that recording does not delay it.
        let mut begun = futures::poll!(&mut sent);
        if begun.is_pending() {
            tokio::task::yield_now().await;
            begun = futures::poll!(&mut sent);
        }
        let host = server.url.host_str().unwrap_or_default();
        hearing.asker.reporter.delivered(Delivery { worker: host.to_owned() });
        let sent = match begun {
            Poll::Ready(sent) => sent,
            Poll::Pending => sent.await,
        };
        let Ok(sent) = sent else {
            return Err(stalled("begin its answer", server.first_byte));
        };
        let answer = sent.map_err(|error| not_sent(&error))?;
        if !answer.status().is_success() {
            return Err(self.refusal(server, answer).await);
        }
        self.take(server, answer, hearing).await
    }

    /// Handles the body of a response as it arrives; returns true if the model paused.
    async fn take(
        &self,
        server: &Server,
        mut from: Response,
        hearing: &mut Hearing<'_>,
    ) -> Result<bool, Failure> {
        let content = from.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let content = content.unwrap_or_default().to_ascii_lowercase();
        let is_document = content.contains("json");
        if content.contains("html") {
            let wrong = Wrong::malformed(format!("its content is of type {content}"), b"");
            return Err(wrong.failure());
        }
        let mut answer = server.wire.answer();
        let (mut cutter, mut document, mut size) = (Cutter::default(), Vec::new(), 0_usize);
        let mut patience = server.first_byte;
        loop {
            let Ok(chunk) = timeout(patience, from.chunk()).await else {
                let what = if size == 0 { "begin its answer" } else { "go on with its answer" };
                return Err(stalled(what, patience));
            };
            let Some(chunk) = chunk.map_err(|error| cut(&error))? else { break };
            patience = server.between_bytes;
            size += chunk.len();
            if size > self.settings.max_answer {
                let most = self.settings.max_answer;
                return Err(Wrong::TooLong { what: "the whole", most }.failure());
            }
            if is_document {
                document.extend_from_slice(&chunk);
                continue;
            }
            let draft = &mut hearing.draft;
            let fed = cutter.feed(&chunk, |event| answer.event(&event, draft));
            hearing.say();
            fed.map_err(|wrong| wrong.failure())?;
            if answer.is_over() {
                // Usually the end of the body is already there; consuming it makes the connection
                // reusable.
                drop(from.chunk().now_or_never());
                return Ok(answer.is_paused());
            }
        }
        if is_document {
            let read = serde_json::from_slice(&document).map_err(|error| {
                Wrong::malformed(format!("it is no JSON: {error}"), &document).failure()
            })?;
            let taken = answer.document(read, &mut hearing.draft);
            hearing.say();
            return taken.map(|()| answer.is_paused()).map_err(|wrong| wrong.failure());
        }
        match hearing.draft.stop {
            // The stop reason came before the stream ended.
            Some(_) if !cutter.has_rest() => Ok(answer.is_paused()),
            _ => Err(Wrong::Cut.failure()),
        }
    }

    async fn refusal(&self, server: &Server, mut answer: Response) -> Failure {
        let (status, retry_after_ms) = (answer.status(), self.retry_after_ms(answer.headers()));
        let id = ["x-request-id", "request-id"].iter().find_map(|name| answer.headers().get(*name));
        let id = id.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        // A body that stalls or is too large is truncated.
        while let Ok(Ok(Some(chunk))) = timeout(server.between_bytes, answer.chunk()).await {
            body.extend_from_slice(&chunk);
            if body.len() > ERROR_BODY {
                break;
            }
        }
        by_status(status, retry_after_ms, id.as_deref(), &body)
    }

    /// Returns the delay after which the provider accepts a retry, in milliseconds.
    fn retry_after_ms(&self, headers: &HeaderMap) -> Option<u64> {
        let own = headers.get("retry-after-ms").and_then(|it| it.to_str().ok());
        if let Some(ms) = own.and_then(|ms| ms.trim().parse().ok()) {
            return whole_ms(ms);
        }
        let pause = retry_after(headers, self.clock.now_ms())?;
        u64::try_from(pause.as_millis()).ok()
    }

    fn headers(&self, server: &Server, hearing: &mut Hearing<'_>) -> Result<HeaderMap, Failure> {
        let Hearing { asker, secrets, .. } = hearing;
        let asked = |name: &str, text: &Text, got: Result<&Secret, &str>| {
            let failed = got.err().map(str::to_owned);
            if let Some(mut event) = text.accessed(name, failed, self.clock.now_ms()) {
                event.operator_id = Some(asker.agent.to_owned());
                asker.reporter.secret_accessed(event);
                got.iter().for_each(|secret| secrets.add(name, secret));
            }
        };
        let mut headers = outgoing::headers(&server.headers, asked)?;
        server.wire.add_headers(&mut headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = HeaderValue::from_static("text/event-stream, application/json");
        headers.insert(ACCEPT, accept);
        if let Some(task) = asker.task {
            outgoing::trace(&mut headers, task);
        }
        Ok(headers)
    }
}

impl Hearing<'_> {
    /// Emits the new deltas.
    pub(super) fn say(&mut self) {
        for mut piece in self.draft.take_pieces() {
            if !self.secrets.is_empty() {
                use ModelDelta::{
                    Arguments, Done, Item, Reasoning, ReasoningSummary, Refusal, Text,
                };
                match &mut piece {
                    Item { begins: item, .. } | Done { whole: item, .. } => {
                        *item = self.secrets.scrub_json(&Json::from(&*item)).to_value();
                    }
                    Text { delta, .. }
                    | Refusal { delta, .. }
                    | Reasoning { delta, .. }
                    | ReasoningSummary { delta, .. }
                    | Arguments { delta, .. } => *delta = self.secrets.scrub_text(delta),
                }
            }
            self.asker.reporter.delta(piece);
        }
    }
}

impl Server {
    /// Requests the list of models, which is free, and returns the host that answered.
    pub(super) async fn reach(&self) -> Result<String, String> {
        let failed = |error: &dyn fmt::Display| format!("failed to {error}");
        self.egress.probe(&self.base).await.map_err(|error| failed(&error))?;
        let mut headers =
            outgoing::headers(&self.headers, |_, _, _| {}).map_err(|failure| failure.message)?;
        self.wire.add_headers(&mut headers);
        let client = self.egress.client_within(INSPECTION).map_err(|error| failed(&error))?;
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("models");
        }
        let host = self.base.host_str().unwrap_or_default().to_owned();
        match timeout(INSPECTION, client.get(url).headers(headers).send()).await {
            Err(_) => Err(format!("{host} did not answer within {INSPECTION:?}")),
            Ok(Err(error)) => Err(not_sent(&error).message),
            Ok(Ok(answer)) if matches!(answer.status().as_u16(), 401 | 403) => {
                Err(format!("{host} refuses its key ({})", answer.status()))
            }
            // Some servers do not list their models.
            Ok(Ok(_)) => Ok(host),
        }
    }
}

#[async_trait]
impl Backend for Llm {
    fn kind(&self) -> &'static str {
        "llm"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn is_model(&self) -> bool {
        true
    }

    fn model_source(&self) -> Option<ModelSource> {
        let model = self.settings.model.clone();
        Some(match &self.settings.provider {
            Provider::Server(server) => {
                let host = server.base.host_str().unwrap_or_default();
                let port = server.base.port_or_known_default().unwrap_or(443);
                let provider = server.wire.provider(host);
                ModelSource { provider, model, server: Some((host.to_owned(), port)) }
            }
            Provider::Script(_) => {
                let model = model.or_else(|| Some("script".to_owned()));
                ModelSource { provider: "script", model, server: None }
            }
        })
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.settings.timeout)
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let asker = Asker::of(&task);
        tokio::select! {
            biased;
            () = task.cancel.cancelled() => {
                Err(Failure::new(kind::CANCELED, "the attempt was given up"))
            }
            reply = self.answer(&task, &asker, &input) => reply,
        }
    }

    async fn ask(
        &self,
        request: &Json,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<TaskDone, Failure> {
        let hears = Hears(heard);
        let asker = Asker::outside(request, &hears);
        match timeout(self.settings.timeout, self.reply(&asker, request)).await {
            Ok(Ok(Reply::Done(done))) => Ok(done),
            Ok(Ok(Reply::Short(short))) => Err(short.failure),
            Ok(Ok(Reply::Parked)) => Err(stalled("answer", self.settings.timeout)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(stalled("end its answer", self.settings.timeout)),
        }
    }
}

impl fmt::Debug for Llm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Llm").field(&self.settings).finish()
    }
}

fn stalled(what: &str, patience: Duration) -> Failure {
    let data = serde_json::json!({ "code": "stalled" });
    let message = format!("the model did not {what} within {patience:?}");
    Failure::new(kind::TIMEOUT, message).with_data(data.into()).retryable()
}

/// Returns the failure of a request without a response.
fn not_sent(error: &reqwest::Error) -> Failure {
    if let Some(error) = EgressError::within(error) {
        return refused(error);
    }
    let what = if error.is_connect() { "reach the model" } else { "ask the model" };
    let message = format!("failed to {what}: {}", innermost(error));
    Failure::new(kind::OPERATOR_UNAVAILABLE, message).retryable()
}

/// Returns the failure of a response that was cut off.
fn cut(error: &reqwest::Error) -> Failure {
    let failure = Wrong::Cut.failure();
    Failure { message: format!("{}: {}", failure.message, innermost(error)), ..failure }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is neither negative nor larger than a day"
)]
fn whole_ms(ms: f64) -> Option<u64> {
    const DAY: f64 = 86_400_000.0;
    (ms >= 0.0).then(|| ms.min(DAY).ceil() as u64)
}
