//! The typed client of the HTTP API: one method a route that the program uses.

mod answers;
mod carried;
mod host;
mod links;
mod locals;
mod queues;
mod scopes;
mod triggers;
mod way;
mod wire;
mod workers;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use anyhow::{Context, Result};
use data_encoding::BASE64URL_NOPAD;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::way::{distrusted, is_loopback};
pub use self::{
    answers::{Blueprints, List, MintedToken, OpenedSession, OperatorEntry, SignInCode},
    carried::HeartbeatAnswer,
    way::Way,
};
use super::{
    exit::{Exit, Stop},
    sse::Events,
};
use crate::{
    clock::Clock,
    door::URL_RESERVED,
    engine::{
        AnsweredView, ArtifactView, AuditView, BlueprintDiff, BlueprintView, BulkView, ChangedView,
        ForkPlan, GcView, HostEventView, LayerView, Made, ReplayView, RunDiff, RunView,
        SessionView, StateItem, StateView, StatsView, StepView, TaskView, TokenView, VersionView,
    },
    environment::{http_client, retry_after},
    host::Socket,
    protocol::{RunId, TaskId},
    token::{Grant, Verb},
};

/// The time limit of an answer; long polls and event streams have their own limits.
const ANSWER: Duration = Duration::from_secs(90);
const CONNECT: Duration = Duration::from_secs(5);

/// Pairs for a query string.
pub type Query<'a> = [(&'a str, String)];

/// Speaks to one daemon with one token.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    /// The same, as it is asked: in plain text over a socket.
    wire: Url,
    /// Open as long as the client goes through it.
    _socket: Option<Socket>,
    token: String,
    /// True if the command can do without this daemon.
    is_optional: bool,
    /// The time at the daemon as of its last answer, in Unix milliseconds; 0 if none said it.
    date_ms: Arc<AtomicU64>,
}

impl Client {
    /// A client for the daemon at `base`.
    ///
    /// # Errors
    /// Fails when `base` is not a URL that this program can speak to.
    pub fn new(base: &str, token: &str) -> Result<Self> {
        Self::by(&Way::default(), base, token)
    }

    /// A client that goes a certain way.
    ///
    /// # Errors
    /// Fails as [`Client::new`] does, or when the certificates to trust cannot be read.
    pub fn by(way: &Way, base: &str, token: &str) -> Result<Self> {
        let url = Url::parse(base)
            .map_err(|error| Stop::usage(format!("{base:?} is not a URL: {error}")))?;
        let mut http = way.prepare(&url, http_client().connect_timeout(CONNECT))?;
        if is_loopback(&url) {
            http = http.no_proxy();
        }
        let http = http.build().context("set up the HTTP client")?;
        let wire = way.wire(&url);
        let (_socket, token) = (way.socket.clone(), token.to_owned());
        let date_ms = Arc::default();
        Ok(Self { http, base: url, wire, _socket, token, is_optional: false, date_ms })
    }

    /// The same daemon with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// The same daemon, named by an option that the command can do without.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// The address of the daemon.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Returns true if the daemon is on this machine.
    pub fn is_local(&self) -> bool {
        is_loopback(&self.base)
    }

    /// Returns true if the daemon takes work; `within` bounds the whole question.
    pub async fn ready(&self, within: Duration) -> Result<()> {
        let request = self.request(Method::GET, "/readyz", &[])?.timeout(within);
        self.send(request).await.map(drop)
    }

    /// Returns true if the token says that it has a verb; the daemon has the last word.
    pub fn may(&self, verb: Verb) -> bool {
        let claims = self.token.split('.').nth(1);
        let claims = claims.and_then(|it| BASE64URL_NOPAD.decode(it.as_bytes()).ok());
        let grant = claims.and_then(|it| serde_json::from_slice::<Grant>(&it).ok());
        grant.is_some_and(|grant| grant.has(verb))
    }

    /// Starts a run.
    pub async fn start(&self, body: &Value) -> Result<Made> {
        self.post("/v1/runs", body).await
    }

    /// Starts a run with the input of another one.
    pub async fn rerun(&self, run: RunId, body: &Value) -> Result<Made> {
        self.post(&format!("/v1/runs/{run}/rerun"), body).await
    }

    /// Compares two runs, with all their steps.
    pub async fn diff(&self, a: RunId, b: RunId) -> Result<RunDiff> {
        let path = format!("/v1/runs/{a}/diff/{b}");
        let page = |cursor: Option<String>| {
            let mut query = vec![("limit", "500".to_owned())];
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            query
        };
        let mut diff: RunDiff = self.get(&path, &page(None)).await?;
        while let Some(cursor) = diff.next_cursor.take() {
            let more: RunDiff = self.get(&path, &page(Some(cursor))).await?;
            diff.items.extend(more.items);
            diff.next_cursor = more.next_cursor;
        }
        Ok(diff)
    }

    /// Acts on many runs.
    pub async fn bulk(&self, body: &Value) -> Result<BulkView> {
        self.post("/v1/runs/bulk", body).await
    }

    /// Starts a run that is watched from then on.
    pub async fn start_watched(&self, body: &Value) -> Result<RunView> {
        let made = self.start(body).await?;
        let hidden = format!("run {} was started, and this token may not read it", made.id());
        Ok(made.view().ok_or_else(|| Stop::new(Exit::Denied, hidden))?)
    }

    /// One run, with input and output.
    pub async fn run(&self, run: RunId) -> Result<RunView> {
        self.get(&format!("/v1/runs/{run}"), &[]).await
    }

    /// A page of runs, newest first.
    pub async fn runs(&self, query: &Query<'_>) -> Result<List<RunView>> {
        self.get("/v1/runs", query).await
    }

    /// The steps of a run after number `after`, all pages.
    pub async fn steps(&self, run: RunId, after: u32) -> Result<Vec<StepView>> {
        self.steps_between(run, after, u32::MAX).await
    }

    /// The same, up to the page that holds step `upto`: a run that goes on makes steps faster than
    /// they can be asked for.
    pub async fn steps_between(&self, run: RunId, after: u32, upto: u32) -> Result<Vec<StepView>> {
        let path = format!("/v1/runs/{run}/steps");
        let mut cursor = (after > 0).then(|| after.to_string());
        let mut steps = Vec::new();
        loop {
            let mut query = vec![("limit", "500".to_owned())];
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            let page: List<StepView> = self.get(&path, &query).await?;
            steps.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() || steps.last().is_some_and(|last| last.seq >= upto) {
                return Ok(steps);
            }
        }
    }

    /// One step with request and response.
    pub async fn step(&self, run: RunId, seq: u32) -> Result<StepView> {
        self.get(&format!("/v1/runs/{run}/steps/{seq}"), &[]).await
    }

    /// The events of a run after number `after`, as they happen.
    pub async fn events(&self, run: RunId, after: u32) -> Result<Events> {
        self.stream(run, &[("starting_after", after.to_string())]).await
    }

    /// The events of all runs, as they happen.
    pub async fn host_events(&self, query: &[(&str, String)]) -> Result<Events<HostEventView>> {
        let request = self.request(Method::GET, "/v1/events", query)?;
        let request = request.header("accept", "text/event-stream");
        Ok(Events::new(self.send(request).await?))
    }

    /// The same, for whoever shows how far the run is: of very many steps only some.
    pub async fn sampled_events(&self, run: RunId, after: u32) -> Result<Events> {
        let query = [("starting_after", after.to_string()), ("sampled", "true".to_owned())];
        self.stream(run, &query).await
    }

    async fn stream(&self, run: RunId, query: &[(&str, String)]) -> Result<Events> {
        let request = self.request(Method::GET, &format!("/v1/runs/{run}/events"), query)?;
        let request = request.header("accept", "text/event-stream");
        Ok(Events::new(self.send(request).await?))
    }

    /// Cancels, pauses or resumes a run; `body` is null where the route takes none.
    pub async fn steer(&self, run: RunId, how: &str, body: &Value) -> Result<RunView> {
        self.post(&format!("/v1/runs/{run}/{how}"), body).await
    }

    /// Returns what a fork would do.
    pub async fn plan_fork(&self, run: RunId, body: &Value) -> Result<ForkPlan> {
        self.post(&format!("/v1/runs/{run}/fork"), body).await
    }

    /// Sends a signal; returns when it is durable.
    pub async fn signal(&self, run: RunId, name: &str, payload: &Value) -> Result<()> {
        let path = format!("/v1/runs/{run}/signals/{}", segment(name));
        let request = self.request(Method::POST, &path, &[])?.json(payload);
        self.send(request.header("idempotency-key", fresh_key())).await.map(drop)
    }

    /// Starts a run of a blueprint that waits for a signal.
    pub async fn signal_blueprint(
        &self,
        name: &str,
        signal: &str,
        payload: &Value,
    ) -> Result<Made> {
        let path = format!("/v1/blueprints/{}/signals/{}", segment(name), segment(signal));
        let request = self.request(Method::POST, &path, &[])?.timeout(ANSWER).json(payload);
        read(self.send(request.header("idempotency-key", fresh_key())).await?).await
    }

    /// Asks a run's `on_query` function.
    pub async fn query(&self, run: RunId, name: &str) -> Result<Value> {
        self.get(&format!("/v1/runs/{run}/query/{}", segment(name)), &[]).await
    }

    /// A page of tasks.
    pub async fn tasks(&self, query: &Query<'_>) -> Result<List<TaskView>> {
        self.get("/v1/tasks", query).await
    }

    /// A page of the answers of people: the same, with `state=answered`.
    pub async fn answered(&self, query: &Query<'_>) -> Result<List<AnsweredView>> {
        self.get("/v1/tasks", query).await
    }

    /// One task with prompt, input and schema.
    pub async fn task(&self, task: TaskId) -> Result<TaskView> {
        self.get(&format!("/v1/tasks/{task}"), &[]).await
    }

    /// Ends the wait for people's answer to a task.
    pub async fn expire(&self, task: TaskId) -> Result<TaskView> {
        self.post(&format!("/v1/tasks/{task}/expire"), &Value::Null).await
    }

    /// Answers a task: `{"output": …}` or `{"reject": reason}`, with the `revision` that was shown.
    pub async fn answer(&self, task: TaskId, body: &Value) -> Result<Value> {
        self.post(&format!("/v1/tasks/{task}/answer"), body).await
    }

    /// The files of a run.
    pub async fn artifacts(&self, run: RunId) -> Result<Vec<ArtifactView>> {
        let page: List<ArtifactView> = self.get(&format!("/v1/runs/{run}/artifacts"), &[]).await?;
        Ok(page.items)
    }

    /// Replays a run's history; `body` names another source, or nothing.
    pub async fn replay(&self, run: RunId, body: &Value) -> Result<ReplayView> {
        self.post(&format!("/v1/runs/{run}/replay"), body).await
    }

    /// A run as a document.
    pub async fn export(&self, run: RunId) -> Result<Response> {
        self.send(self.request(Method::GET, &format!("/v1/runs/{run}/export"), &[])?).await
    }

    /// Takes a run in from a document.
    pub async fn import(&self, document: Vec<u8>) -> Result<RunView> {
        let request = self.request(Method::POST, "/v1/runs/import", &[])?;
        let request = request.header("content-type", "application/x-ndjson").body(document);
        read(self.send(request.header("idempotency-key", fresh_key())).await?).await
    }

    /// The whole database, as bytes.
    pub async fn backup(&self) -> Result<Response> {
        self.send(self.request(Method::GET, "/v1/backup", &[])?).await
    }

    /// A check of everything that is stored, line by line.
    pub async fn check_store(&self) -> Result<Response> {
        self.send(self.request(Method::GET, "/v1/check", &[])?).await
    }

    /// Lets old runs go, or says which would.
    pub async fn gc(&self, dry_run: bool) -> Result<GcView> {
        let request = self.request(Method::POST, "/v1/gc", &[])?;
        read(self.send(request.json(&json!({"dry_run": dry_run}))).await?).await
    }

    /// Deletes an ended run.
    pub async fn delete(&self, run: RunId) -> Result<()> {
        let request = self.request(Method::DELETE, &format!("/v1/runs/{run}"), &[])?;
        self.send(request.timeout(ANSWER)).await.map(drop)
    }

    /// The content of a file.
    pub async fn artifact(&self, id: &str) -> Result<Response> {
        let request = self.request(Method::GET, &format!("/v1/artifacts/{}", segment(id)), &[])?;
        self.send(request).await
    }

    /// A blueprint: `name` or `name@prefix`.
    pub async fn blueprint(&self, name: &str) -> Result<BlueprintView> {
        self.get(&format!("/v1/blueprints/{}", segment(name)), &[]).await
    }

    /// The names, each with the version that it stands for.
    pub async fn blueprints(&self, archived: bool) -> Result<Blueprints> {
        let query: Vec<_> = archived.then(|| ("archived", "true".to_owned())).into_iter().collect();
        self.get("/v1/blueprints", &query).await
    }

    /// The stored versions of a blueprint, newest first.
    pub async fn blueprint_versions(&self, name: &str) -> Result<List<VersionView>> {
        let query = [("limit", "500".to_owned())];
        self.get(&format!("/v1/blueprints/{}/versions", segment(name)), &query).await
    }

    /// The difference of two versions of a blueprint.
    pub async fn blueprint_diff(
        &self,
        name: &str,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<BlueprintDiff> {
        let query: Vec<_> = [("from", from), ("to", to)]
            .into_iter()
            .filter_map(|(name, hash)| Some((name, hash?.to_owned())))
            .collect();
        self.get(&format!("/v1/blueprints/{}/diff", segment(name)), &query).await
    }

    /// Archives a blueprint.
    pub async fn archive_blueprint(&self, name: &str) -> Result<BlueprintView> {
        self.post(&format!("/v1/blueprints/{}/archive", segment(name)), &Value::Null).await
    }

    /// Restores an archived blueprint.
    pub async fn restore_blueprint(&self, name: &str) -> Result<BlueprintView> {
        self.post(&format!("/v1/blueprints/{}/restore", segment(name)), &Value::Null).await
    }

    /// Deletes an archived blueprint that no run has.
    pub async fn delete_blueprint(&self, name: &str) -> Result<()> {
        let path = format!("/v1/blueprints/{}", segment(name));
        let request = self.request(Method::DELETE, &path, &[])?;
        self.send(request.timeout(ANSWER)).await.map(drop)
    }

    /// Makes a token.
    pub async fn mint(&self, body: &Value) -> Result<MintedToken> {
        self.post("/v1/tokens", body).await
    }

    /// The tokens that were made.
    pub async fn tokens(&self) -> Result<Vec<TokenView>> {
        let page: List<TokenView> = self.get("/v1/tokens", &[]).await?;
        Ok(page.items)
    }

    /// Makes a code that signs in to the dashboard once.
    pub async fn sign_in_code(&self, role: Option<&str>) -> Result<SignInCode> {
        self.post("/ui/codes", &serde_json::json!({"role": role})).await
    }

    /// Returns the owner of this token.
    pub async fn whoami(&self) -> Result<Value> {
        self.get("/v1/whoami", &[]).await
    }

    /// Changes the keys behind tokens and handles.
    pub async fn rotate_keys(&self, body: &Value) -> Result<Value> {
        self.post("/v1/keys/rotate", body).await
    }

    /// Makes a token worthless.
    pub async fn revoke(&self, jti: &str) -> Result<()> {
        let path = format!("/v1/tokens/{}", segment(jti));
        self.send(self.request(Method::DELETE, &path, &[])?.timeout(ANSWER)).await.map(drop)
    }

    /// The layers that runs go through; with a blueprint those of its runs.
    pub async fn layers(&self, blueprint: Option<&str>) -> Result<Vec<LayerView>> {
        let query = blueprint.map(|it| ("blueprint", it.to_owned()));
        let page: List<LayerView> = self.get("/v1/middleware", query.as_slice()).await?;
        Ok(page.items)
    }

    /// Lines of the audit log after a number, oldest first.
    pub async fn audit(&self, after: u64) -> Result<List<AuditView>> {
        let query = [("limit", "500".to_owned()), ("cursor", after.to_string())];
        self.get("/v1/audit", &query).await
    }

    /// The operators.
    pub async fn operators(&self) -> Result<Vec<OperatorEntry>> {
        let page: List<OperatorEntry> = self.get("/v1/operators", &[]).await?;
        Ok(page.items)
    }

    /// The statistics of what ended.
    pub async fn stats(&self, query: &[(&str, String)]) -> Result<StatsView> {
        self.get("/v1/stats", query).await
    }

    /// The open sessions, oldest first.
    pub async fn sessions(&self) -> Result<Vec<SessionView>> {
        let page: List<SessionView> = self.get("/v1/sessions", &[]).await?;
        Ok(page.items)
    }

    /// Opens a session.
    pub async fn open_session(&self, operator: &str, body: &Value) -> Result<OpenedSession> {
        self.post(&format!("/v1/operators/{}/sessions", segment(operator)), body).await
    }

    /// Closes a session.
    pub async fn close_session(&self, session: &str) -> Result<()> {
        let path = format!("/v1/sessions/{}", segment(session));
        self.send(self.request(Method::DELETE, &path, &[])?.timeout(ANSWER)).await.map(drop)
    }

    /// Gives an operator's seat in a run to a session.
    pub async fn seat(&self, run: RunId, operator: &str, session: &str) -> Result<Value> {
        let path = format!("/v1/runs/{run}/seats/{}", segment(operator));
        self.post(&path, &json!({ "session": session })).await
    }

    /// A value of state.
    pub async fn state(&self, scope: &str, key: &str) -> Result<StateView> {
        self.get(&state_path(scope, key), &[]).await
    }

    /// Keys of a scope of state: a page, what a search finds, what links lead to.
    pub async fn states(&self, scope: &str, query: &Query<'_>) -> Result<List<StateItem>> {
        self.get(&format!("/v1/state/{}", segment(scope)), query).await
    }

    /// Writes a value of state.
    pub async fn put_state(&self, scope: &str, key: &str, body: &Value) -> Result<ChangedView> {
        let request = self.request(Method::PUT, &state_path(scope, key), &[])?;
        read(self.send(request.timeout(ANSWER).json(body)).await?).await
    }

    /// Deletes a value of state.
    pub async fn delete_state(&self, scope: &str, key: &str, revision: Option<u64>) -> Result<()> {
        let query: Vec<_> =
            revision.map(|it| ("if_revision", it.to_string())).into_iter().collect();
        let request = self.request(Method::DELETE, &state_path(scope, key), &query)?;
        self.send(request.timeout(ANSWER)).await.map(drop)
    }

    /// Changes state, all of it or nothing.
    pub async fn batch_state(&self, body: &Value) -> Result<Value> {
        self.post("/v1/state/batch", body).await
    }

    /// Answers what an attempt asked.
    pub async fn advise(&self, task: TaskId, body: &Value) -> Result<TaskView> {
        self.post(&format!("/v1/tasks/{task}/advice"), body).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &Query<'_>) -> Result<T> {
        let response = self.send(self.request(Method::GET, path, query)?.timeout(ANSWER)).await?;
        read(response).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        let mut request = self.request(Method::POST, path, &[])?.timeout(ANSWER);
        request = super::values::traced(request.header("idempotency-key", fresh_key()));
        if !body.is_null() {
            request = request.json(body);
        }
        read(self.send(request).await?).await
    }

    fn request(&self, method: Method, path: &str, query: &Query<'_>) -> Result<RequestBuilder> {
        let mut url = self.wire.clone();
        url.set_path(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(self.http.request(method, url).bearer_auth(&self.token))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            self.note_date(response.headers());
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), Clock::system().now_ms());
        let body = response.text().await.unwrap_or_default();
        Err(Stop { retry_after, ..Stop::from_response(status.as_u16(), &body) }.into())
    }

    fn unreachable(&self, error: &reqwest::Error) -> Stop {
        if let Some(why) = distrusted(error) {
            let message = format!("the certificate of {} is not trusted: {why}", self.url());
            return Stop::new(Exit::Unavailable, message)
                .next("--ca FILE (MOONSWARM_CA) names the certificate of the authority to trust");
        }
        let why = if error.is_timeout() { "does not answer" } else { "cannot be reached" };
        let next = match self.is_optional {
            true => "start one with `moonswarm serve`, or drop --server to run without one",
            false => "start one with `moonswarm serve`",
        };
        Stop::new(Exit::Unavailable, format!("the daemon at {} {why}", self.url())).next(next)
    }
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T> {
    let body = response.bytes().await.context("read the daemon's answer")?;
    serde_json::from_slice(&body)
        .context("understand the daemon's answer; is it of another version?")
}

fn state_path(scope: &str, key: &str) -> String {
    format!("/v1/state/{}/{}", segment(scope), segment(key))
}

/// The characters that are encoded in a segment of a path. `@` stays, so that `name@hash` is readable.
const SEGMENT: &AsciiSet = &URL_RESERVED.remove(b'@');

/// Returns a text as one segment of a path.
fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn fresh_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fixture;

    #[test]
    fn a_name_is_one_segment_whatever_is_in_it() {
        assert_eq!(segment("go/../x y"), "go%2F..%2Fx%20y");
        assert_eq!(segment("review@ab12"), "review@ab12");
    }

    #[test]
    fn http_is_spoken_with_and_without_tls() {
        let error = Client::new("ftp://example.org", "t").err().unwrap();
        assert!(error.to_string().contains("only http://"));
        assert!(Client::new("https://example.org", "t").is_ok());
        assert!(Client::new("http://[::1]:7700", "t").unwrap().is_local());
        assert!(!Client::new("http://10.0.0.1:7700", "t").unwrap().is_local());
    }

    #[tokio::test]
    async fn steps_come_from_every_page() {
        let page = |seq: u32, next: &str| {
            let step = serde_json::to_value(fixture::step(seq, "", 0, "completed")).unwrap();
            json!({"items": [step], "next_cursor": serde_json::from_str::<Value>(next).unwrap()})
        };
        let server = fixture::serve(vec![
            (200, page(1, "\"1\"").to_string()),
            (200, page(2, "null").to_string()),
        ])
        .await;
        let client = Client::new(&server.url, "t").unwrap();
        let steps = client.steps(fixture::run_id(), 0).await.unwrap();
        assert_eq!(steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [1, 2]);
        let asked = server.asked();
        assert!(asked[1].starts_with("GET /v1/runs/run_"), "{asked:?}");
        assert!(asked[1].contains("cursor=1"), "{asked:?}");
        assert!(asked[1].contains("Bearer t"), "{asked:?}");
    }

    #[tokio::test]
    async fn steps_that_are_made_while_they_are_asked_for_are_left_for_the_next_time() {
        let step = |seq| serde_json::to_value(fixture::step(seq, "", 0, "completed")).unwrap();
        let page = json!({"items": [step(1), step(2)], "next_cursor": "2"});
        let server = fixture::serve(vec![(200, page.to_string())]).await;
        let client = Client::new(&server.url, "t").unwrap();
        let steps = client.steps_between(fixture::run_id(), 0, 1).await.unwrap();
        assert_eq!(steps.iter().map(|step| step.seq).collect::<Vec<_>>(), [1, 2]);
    }

    #[tokio::test]
    async fn a_daemon_that_is_not_there_is_unavailable() {
        let client = Client::new("http://127.0.0.1:1", "t").unwrap();
        let error = client.ready(Duration::from_secs(2)).await.unwrap_err();
        let (exit, stop) = crate::cli::exit::judge(&error);
        assert_eq!(exit, Exit::Unavailable);
        let next = stop.and_then(|stop| stop.next);
        assert_eq!(next.as_deref(), Some("start one with `moonswarm serve`"));
        let error = client.optional().ready(Duration::from_secs(2)).await.unwrap_err();
        let next = crate::cli::exit::judge(&error).1.and_then(|stop| stop.next);
        assert!(next.is_some_and(|next| next.contains("drop --server")));
    }

    #[tokio::test]
    async fn a_problem_becomes_a_stop_with_its_code() {
        let body = json!({"code": "fenced", "detail": "the attempt is not yours"}).to_string();
        let server = fixture::serve(vec![(409, body)]).await;
        let client = Client::new(&server.url, "t").unwrap();
        let error = client.heartbeat().await.unwrap_err();
        assert_eq!(crate::cli::exit::judge(&error).0, Exit::Conflict);
    }
}
