//! Maintenance of the data directory: backups, and the deletion of old runs.

use axum::{
    Json as JsonBody,
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tokio_util::io::ReaderStream;
use utoipa::ToSchema;

use super::{app::Api, body::Posted, params::Asker};
use crate::{
    door::{Problem, ProblemBody},
    engine::GcView,
    store::Checked,
};

/// The number of bytes of a backup that are read at a time.
const CHUNK: usize = 256 << 10;

/// Copies the whole database, as it is now, while it is in use.
#[utoipa::path(
    get, path = "/v1/backup", operation_id = "host_backup", tag = "host",
    responses(
        (status = 200, description = "The database, for `moonswarm restore`; keys are not in it.", body = Vec<u8>, content_type = "application/vnd.sqlite3"),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 507, description = "`storage_full`", body = ProblemBody),
    ),
)]
pub(super) async fn backup(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<Response, Problem> {
    let (file, size) = api.engine.upkeep().backup(&caller).await?;
    let stream = ReaderStream::with_capacity(tokio::fs::File::from_std(file), CHUNK);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/vnd.sqlite3")),
        (header::CONTENT_LENGTH, HeaderValue::from(size)),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// Reads everything that is stored once, and says what is not what was stored.
///
/// The answer comes line by line, as the check goes on; its last line says `done`, or `failed` where
/// the database cannot be read at all.
#[utoipa::path(
    get, path = "/v1/check", operation_id = "host_check", tag = "host",
    responses(
        (status = 200, description = "The lines of the check.", body = Checked, content_type = "application/x-ndjson"),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn check(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<Response, Problem> {
    let lines = api.engine.upkeep().check_store(&caller).await?;
    let lines = futures::stream::unfold(lines, |mut lines| async {
        let line = match lines.recv().await? {
            Ok(line) => serde_json::to_string(&line).expect("a line is plain data"),
            Err(error) => {
                let problem = Problem::from(error);
                let body = serde_json::to_value(problem.body()).expect("a problem is plain data");
                serde_json::json!({ "type": "failed", "problem": body }).to_string()
            }
        };
        Some((Ok::<_, std::convert::Infallible>(line + "\n"), lines))
    });
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))];
    Ok((kind, Body::from_stream(lines)).into_response())
}

/// The request for a collection.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GcBody {
    /// Only say what would go.
    #[serde(default)]
    dry_run: bool,
}

/// Lets ended runs go that the retention policy gives up, and gives free room back.
#[utoipa::path(
    post, path = "/v1/gc", operation_id = "host_gc", tag = "host",
    request_body(content = Option<GcBody>, description = "May be absent."),
    responses(
        (status = 200, description = "What went, or would go; where `more`, ask again.", body = GcView),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn gc(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<Option<GcBody>>,
) -> Result<JsonBody<GcView>, Problem> {
    let dry_run = posted.body.unwrap_or_default().dry_run;
    Ok(JsonBody(api.engine.upkeep().gc(&caller, dry_run).await?))
}
