//! Runs: start, show, cancel, pause, resume, delete.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json as JsonBody,
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Key, Params},
};
use crate::{
    blueprint::Bundle,
    door::{Code, Problem, ProblemBody},
    engine::{Caller, EngineError, Made, Program, RunView, StartRun, WaitFor},
    protocol::{Json, RunId, SessionId, Tags},
};

/// The default file name of a source.
pub(super) const ENTRY: &str = "main.lua";

/// The size that fits most views of a run, in bytes.
const VIEW_BYTES: usize = 1 << 10;

/// The number of headers of an answer with a view: two, and those that the door adds.
const HEADERS: usize = 8;

/// A run to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartBody {
    /// A stored blueprint: `name` or `name@hash-prefix`. Either this, or `source`, `files`, `flow`.
    blueprint: Option<String>,
    /// The Lua source; it is stored by its hash and moves no name. Takes the verb `run.source`, as
    /// `files` and `flow` do.
    source: Option<String>,
    /// The files around `source`, or all of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The path of `source` among the files (`main.lua`), or the file of the bundle that returns
    /// the blueprint.
    entry: Option<String>,
    /// A flow as a table of nodes (docs/protocol/flow.schema.json); it is stored by its hash and
    /// moves no name.
    #[schema(value_type = Option<serde_json::Value>)]
    flow: Option<Json>,
    /// The agents of `flow`, by name.
    #[schema(value_type = Option<serde_json::Value>)]
    agents: Option<Json>,
    /// The input.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Json>,
    /// The cause of the start, for the history of the run.
    #[schema(value_type = Option<serde_json::Value>)]
    trigger: Option<Json>,
    /// The time to wait for the end before answering, at most a minute: `"30s"`.
    wait: Option<String>,
    /// Which session holds which operator: ids by operator name.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    seats: Option<BTreeMap<String, SessionId>>,
    /// The session that takes every task, whatever operators the agents name.
    delegate: Option<String>,
    /// The working directory of its child processes; an absolute path on the host. Needs the verb
    /// `run.workdir`.
    workdir: Option<String>,
    /// Tags: at most 16 short texts by name, for lists and filters. A name has 1 to 64 ASCII letters,
    /// digits and `_ - . : /`, a value at most 512 bytes.
    tags: Option<BTreeMap<String, String>>,
}

impl StartBody {
    /// Returns the run to start, and the time to wait for its end.
    ///
    /// # Errors
    /// Fails when the body does not name a program, or is invalid.
    pub(super) fn into_start(self) -> Result<(StartRun, Option<Duration>), Problem> {
        let program = match (self.flow, self.agents) {
            (None, None) => program(self.blueprint, self.source, self.files, self.entry)?,
            (None, Some(_)) => {
                let detail = "`agents` is only allowed together with `flow`";
                return Err(Problem::new(Code::InvalidBody, detail).at("$.agents"));
            }
            (Some(flow), agents) => {
                let alone = self.blueprint.is_none() && self.source.is_none();
                if !alone || self.files.is_some() || self.entry.is_some() {
                    let detail =
                        "`flow` stands alone with its `agents`, without blueprint, source or files";
                    return Err(Problem::new(Code::InvalidBody, detail).at("$.flow"));
                }
                let bundle = Bundle::from_flow(&flow, agents.as_ref());
                Program::Bundle(bundle.map_err(|e| Problem::findings(vec![e.finding(ENTRY)]))?)
            }
        };
        let wait = params::wait(self.wait.as_deref())
            .map_err(|detail| Problem::new(Code::InvalidBody, detail).at("$.wait"))?;
        let start = StartRun {
            program,
            input: self.input.unwrap_or_else(Json::null),
            trigger: self.trigger.unwrap_or_else(Json::null),
            workdir: self.workdir,
            delegate: self.delegate.map(SessionId::from),
            seats: self.seats.unwrap_or_default(),
            tags: tags(self.tags)?,
        };
        Ok((start, wait))
    }
}

/// Returns the tags in a body.
///
/// # Errors
/// Fails when one breaks a rule.
pub(super) fn tags(given: Option<BTreeMap<String, String>>) -> Result<Tags, Problem> {
    Tags::new(given.unwrap_or_default())
        .map_err(|error| Problem::new(Code::InvalidBody, format!("failed to {error}")).at("$.tags"))
}

/// Returns the program in a body.
///
/// # Errors
/// Fails when there is none, or more than one.
pub(super) fn program(
    blueprint: Option<String>,
    source: Option<String>,
    files: Option<BTreeMap<String, String>>,
    entry: Option<String>,
) -> Result<Program, Problem> {
    let which = |detail: &str| Problem::new(Code::InvalidBody, detail).at("$");
    match (blueprint, source, files) {
        (Some(name), None, None) if entry.is_none() => Ok(Program::Named(name)),
        (None, None, None) => Err(which("give `blueprint`, `source`, `files` or `flow`")),
        (None, source, files) => bundle(source, files, entry).map(Program::Bundle),
        (Some(_), _, _) => Err(which("`blueprint` stands alone, without source, files or entry")),
    }
}

/// Returns the bundle of a source, of files, or of both.
///
/// # Errors
/// Fails when they are not a valid bundle.
pub(super) fn bundle(
    source: Option<String>,
    files: Option<BTreeMap<String, String>>,
    entry: Option<String>,
) -> Result<Bundle, Problem> {
    let mut files: BTreeMap<String, Arc<str>> =
        files.unwrap_or_default().into_iter().map(|(path, text)| (path, Arc::from(text))).collect();
    let entry = match source {
        Some(source) => {
            let entry = entry.unwrap_or_else(|| ENTRY.to_owned());
            if files.insert(entry.clone(), source.into()).is_some() {
                let detail = format!("`source` and `files` both have {entry:?}");
                return Err(Problem::new(Code::InvalidBody, detail).at("$.files"));
            }
            Some(entry)
        }
        None => entry,
    };
    Bundle::from_files(files, entry.as_deref())
        .map_err(|error| Problem::findings(vec![error.finding(entry.as_deref().unwrap_or(ENTRY))]))
}

/// Starts a run and answers when it is durable, or when it ended within `wait`.
#[utoipa::path(
    post, path = "/v1/runs", operation_id = "run_start", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = StartBody,
    responses(
        (status = 201, description = "The run, as it is after at most `wait`; `Location` names it. A token that may not read the run gets its `id` alone, at once.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`blueprint_invalid` with `findings`, `invalid_input` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn start(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<StartBody>,
) -> Result<Response, Problem> {
    let (start, wait) = posted.body.into_start()?;
    let key = key.of("POST /v1/runs", &posted.raw);
    let made = match wait {
        Some(wait) => {
            let patience = api.patience(&caller, wait);
            api.engine.start_and_wait(&caller, start, key, WaitFor::Ended, patience).await?
        }
        None => Box::pin(api.engine.start_seen(&caller, start, key)).await?,
    };
    Ok(created(&made))
}

/// Returns the response for a new run: the whole view, or its id if the token may not read it.
pub(super) fn created(made: &Made) -> Response {
    let location = format!("/v1/runs/{}", made.id());
    let location = HeaderValue::try_from(location).expect("an id is ASCII");
    let mut body = Vec::with_capacity(VIEW_BYTES);
    serde_json::to_writer(&mut body, made).expect("a view is plain data");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::LOCATION, location);
    response
}

/// Waits for a run, until the host stops.
pub(super) async fn watched(
    api: &Api,
    caller: &Caller,
    run: RunId,
    until: WaitFor,
    wait: Duration,
) -> Result<RunView, EngineError> {
    tokio::select! {
        view = api.engine.wait(caller, run, until, wait) => view,
        () = api.stopping.cancelled() => api.engine.run(caller, run).await,
    }
}

/// The query of a single run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GetParams {
    /// The time to wait, at most a minute.
    #[param(example = "30s")]
    wait: Option<String>,
    /// Until when: `ended` (the default), or `people`: ended, or only people are left to wait for.
    #[param(inline)]
    until: Option<Until>,
}

/// Until when to wait.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Until {
    /// The run ended.
    Ended,
    /// The run ended, or only people are left to wait for.
    People,
}

/// Shows a run with its input and output.
#[utoipa::path(
    get, path = "/v1/runs/{run}", operation_id = "run_get", tag = "runs",
    params(("run" = String, Path, description = "The run's id."), GetParams),
    responses(
        (status = 200, description = "The run, as it is after at most `wait`.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    Params(params): Params<GetParams>,
) -> Result<JsonBody<RunView>, Problem> {
    let run = params::id(&run)?;
    let until = match params.until {
        None | Some(Until::Ended) => WaitFor::Ended,
        Some(Until::People) => WaitFor::EndedOrPeople,
    };
    let view = match params::wait(params.wait.as_deref()).map_err(params::bad_query)? {
        Some(wait) => watched(&api, &caller, run, until, wait).await?,
        None => api.engine.run(&caller, run).await?,
    };
    Ok(JsonBody(view))
}

/// Deletes an ended run with its history and artifacts.
#[utoipa::path(
    delete, path = "/v1/runs/{run}", operation_id = "run_delete", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`not_ended`, `in_use`", body = ProblemBody),
    ),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
) -> Result<StatusCode, Problem> {
    api.engine.delete_run(&caller, params::id(&run)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The reason for stopping a run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonBody {
    /// For the run's history.
    reason: Option<String>,
}

/// Cancels a run: its open attempts are closed, then its compensations run.
#[utoipa::path(
    post, path = "/v1/runs/{run}/cancel", operation_id = "run_cancel", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours; without it, a second cancel ends the compensations."),
    ),
    request_body(content = Option<ReasonBody>, description = "May be absent."),
    responses(
        (status = 200, description = "The run, after the cancel is durable.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`run_closed`, `idempotency_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    key: Key,
    posted: Posted<Option<ReasonBody>>,
) -> Result<JsonBody<RunView>, Problem> {
    let key = key.of("POST /v1/runs/{run}/cancel", &posted.raw);
    let reason = posted.body.unwrap_or_default().reason.unwrap_or_default();
    Ok(JsonBody(api.engine.cancel(&caller, params::id(&run)?, reason, key).await?))
}

/// Lets a run rest: nothing new is begun until it is resumed.
#[utoipa::path(
    post, path = "/v1/runs/{run}/pause", operation_id = "run_pause", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    request_body(content = Option<ReasonBody>, description = "May be absent."),
    responses(
        (status = 200, description = "The run.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    posted: Posted<Option<ReasonBody>>,
) -> Result<JsonBody<RunView>, Problem> {
    let reason = posted.body.unwrap_or_default().reason.unwrap_or_default();
    Ok(JsonBody(api.engine.pause(&caller, params::id(&run)?, reason).await?))
}

/// Lets a paused run go on.
#[utoipa::path(
    post, path = "/v1/runs/{run}/resume", operation_id = "run_resume", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    responses(
        (status = 200, description = "The run.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
) -> Result<JsonBody<RunView>, Problem> {
    Ok(JsonBody(api.engine.resume(&caller, params::id(&run)?).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::read_json;

    fn start_of(text: &str) -> Result<(StartRun, Option<Duration>), (&'static str, String)> {
        read_json::<StartBody>(text.as_bytes()).and_then(StartBody::into_start).map_err(|problem| {
            (problem.code().as_str(), problem.path().unwrap_or_default().to_owned())
        })
    }

    #[test]
    fn a_run_is_started_from_a_name_a_source_or_files() {
        let (named, wait) =
            start_of(r#"{"blueprint":"a@1f","input":{"x":1},"wait":"5m"}"#).unwrap();
        assert!(matches!(named.program, Program::Named(name) if name == "a@1f"));
        assert_eq!((named.input.as_str(), wait), (r#"{"x":1}"#, Some(Duration::from_secs(60))));
        for (text, entry) in [
            (r#"{"source":"return 1"}"#, "main.lua"),
            (r#"{"source":"return 1","entry":"b.lua","files":{"c.md":"x"}}"#, "b.lua"),
            (r#"{"files":{"only.lua":"return 1"}}"#, "only.lua"),
            (r#"{"flow":{"kind":"seq"},"agents":{}}"#, "inline.json"),
        ] {
            let Program::Bundle(bundle) = start_of(text).unwrap().0.program else {
                panic!("{text}")
            };
            assert_eq!(bundle.entry(), entry);
        }
    }

    #[tokio::test]
    async fn a_new_run_is_answered_with_its_place_and_as_json() {
        let made = Made::Hidden { id: RunId::new(1, 2) };
        let (parts, body) = created(&made).into_parts();
        assert_eq!(parts.status, StatusCode::CREATED);
        assert_eq!(parts.headers[header::CONTENT_TYPE], "application/json");
        assert_eq!(parts.headers[header::LOCATION], format!("/v1/runs/{}", made.id()));
        let body = axum::body::to_bytes(body, VIEW_BYTES).await.unwrap();
        assert_eq!(body, serde_json::to_vec(&made).unwrap());
    }

    #[test]
    fn what_cannot_be_started_is_refused_with_the_field() {
        for (text, code, path) in [
            ("{}", "invalid_body", "$"),
            (r#"{"blueprint":"a","source":"b"}"#, "invalid_body", "$"),
            (r#"{"agents":{}}"#, "invalid_body", "$.agents"),
            (r#"{"flow":{},"source":"x"}"#, "invalid_body", "$.flow"),
            (r#"{"blueprint":"a","seats":[]}"#, "invalid_body", "$.seats"),
            (r#"{"blueprint":"a","wait":"soon"}"#, "invalid_body", "$.wait"),
            (r#"{"blueprint":"a","inptu":1}"#, "unknown_field", "$.inptu"),
            (r#"{"source":"a","files":{"main.lua":"b"}}"#, "invalid_body", "$.files"),
            (r#"{"files":{"../x.lua":"b"}}"#, "blueprint_invalid", ""),
        ] {
            assert_eq!(start_of(text).unwrap_err(), (code, path.to_owned()), "{text}");
        }
    }
}
