//! Forks and imports of runs, and replays and exports.

use std::collections::BTreeMap;

use axum::{
    Json as JsonBody,
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    app::Api,
    body::{Posted, Raw},
    params::{self, Asker, At, Key},
    runs::{created, program},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{Fork, ForkPlan, Program, ReplayView, RunView},
    protocol::Json,
};

/// The request for a fork.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkBody {
    /// The first step that is done anew; those before it keep their results. The number after the last
    /// step keeps them all.
    from_step: u32,
    /// Laid over the input, as a JSON merge patch (RFC 7396).
    #[schema(value_type = Option<serde_json::Value>)]
    input_patch: Option<Json>,
    /// The input of the step `from_step`, in place of the recorded one; for tasks and calls of runs.
    #[schema(value_type = Option<serde_json::Value>)]
    step_input: Option<Json>,
    /// The outputs of kept steps, in place of the recorded ones, by their numbers; at most 100.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    outputs: BTreeMap<u32, Json>,
    /// Only says what the fork would keep and request; nothing is stored. Takes the verb `run.read` as
    /// well.
    #[serde(default)]
    dry_run: bool,
    /// A stored blueprint to go on with: `name` or `name@hash-prefix`; the original's own if absent.
    blueprint: Option<String>,
    /// Lua source to go on with; it is stored by its hash and moves no name. Takes the verb
    /// `run.source`, as `files` does.
    source: Option<String>,
    /// The files around `source`, or all of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The path of `source` among the files, or the file that returns the blueprint.
    entry: Option<String>,
}

/// Which source to replay against.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayBody {
    /// A stored blueprint: `name` or `name@hash-prefix`; the run's own if absent.
    blueprint: Option<String>,
    /// Lua source; it is not stored.
    source: Option<String>,
    /// The files around `source`, or all of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The path of `source` among the files, or the file that returns the blueprint.
    entry: Option<String>,
}

/// Returns the source in a body, if there is one.
fn other(
    blueprint: Option<String>,
    source: Option<String>,
    files: Option<BTreeMap<String, String>>,
    entry: Option<String>,
) -> Result<Option<Program>, Problem> {
    if blueprint.is_none() && source.is_none() && files.is_none() && entry.is_none() {
        return Ok(None);
    }
    program(blueprint, source, files, entry).map(Some)
}

/// Copies a run's history up to a step into a new run, which goes on from there. A dry run says which
/// steps the fork would keep and what it would do first.
#[utoipa::path(
    post, path = "/v1/runs/{run}/fork", operation_id = "run_fork", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body = ForkBody,
    responses(
        (status = 200, description = "The plan, for a dry run.", body = ForkPlan),
        (status = 201, description = "The new run; it rests if the source or the input asks for other steps than the history has.", body = RunView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`history_too_long`, `idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`blueprint_invalid` with `findings`, `invalid_input` or `invalid_result` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn fork(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    key: Key,
    posted: Posted<ForkBody>,
) -> Result<Response, Problem> {
    let ForkBody { blueprint, source, files, entry, .. } = posted.body;
    let program = other(blueprint, source, files, entry)?;
    let ForkBody { from_step, input_patch, step_input, outputs, dry_run, .. } = posted.body;
    let fork = Fork { from_step, input_patch, step_input, outputs, program };
    let (histories, run) = (api.engine.histories(), params::id(&run)?);
    if dry_run {
        return Ok(JsonBody(histories.plan_fork(&caller, run, fork).await?).into_response());
    }
    let key = key.of("POST /v1/runs/{run}/fork", &posted.raw);
    Ok(created(&histories.fork(&caller, run, fork, key).await?))
}

/// Replays a run's history without effects, against its own source or another one.
#[utoipa::path(
    post, path = "/v1/runs/{run}/replay", operation_id = "run_replay", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    request_body(content = Option<ReplayBody>, description = "May be absent."),
    responses(
        (status = 200, description = "How many entries there are, and where the flow first differs.", body = ReplayView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 422, description = "`blueprint_invalid` with `findings`", body = ProblemBody),
    ),
)]
pub(super) async fn replay(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    posted: Posted<Option<ReplayBody>>,
) -> Result<JsonBody<ReplayView>, Problem> {
    let ReplayBody { blueprint, source, files, entry } = posted.body.unwrap_or_default();
    let against = other(blueprint, source, files, entry)?;
    Ok(JsonBody(api.engine.histories().replay(&caller, params::id(&run)?, against).await?))
}

/// Writes a run as a document of JSON lines.
#[utoipa::path(
    get, path = "/v1/runs/{run}/export", operation_id = "run_export", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    responses(
        (status = 200, description = "The document; its last line seals it.", body = String, content_type = "application/x-ndjson"),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`history_too_long`", body = ProblemBody),
    ),
)]
pub(super) async fn export(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
) -> Result<Response, Problem> {
    let export = api.engine.histories().export(&caller, params::id(&run)?).await?;
    let lines = futures::stream::unfold(export, |mut export| async {
        export.next().await.map(|line| (line, export))
    });
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))];
    Ok((kind, Body::from_stream(lines)).into_response())
}

/// Takes a run in from a document: all of it, or nothing.
#[utoipa::path(
    post, path = "/v1/runs/import", operation_id = "run_import", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body(content = String, content_type = "application/x-ndjson", description = "What `GET /v1/runs/{run}/export` gave, at most 128 MiB."),
    responses(
        (status = 201, description = "The run; it has a new id where its number was given before, and rests unless it has ended.", body = RunView),
        (status = 400, description = "`bad_request`: the document is not whole, of another version, or contradicts itself.", body = ProblemBody),
        (status = 409, description = "`history_too_long`, `idempotency_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn import(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    raw: Raw,
) -> Result<Response, Problem> {
    let key = key.of("POST /v1/runs/import", &raw.bytes);
    Ok(created(&api.engine.histories().import(&caller, raw.bytes, key).await?))
}
