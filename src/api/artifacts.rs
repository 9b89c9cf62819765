//! Files of runs.

use axum::{
    Json as JsonBody,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    app::Api,
    body::Raw,
    params::{self, All, Asker, At, Params},
};
use crate::{
    door::{Problem, ProblemBody, percent_encoded},
    engine::ArtifactView,
};

/// Lists the files of a run.
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts", operation_id = "artifact_list", tag = "runs",
    params(("run" = String, Path, description = "The run's id.")),
    responses(
        (status = 200, description = "All of them.", body = All<ArtifactView>),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
) -> Result<JsonBody<All<ArtifactView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.tasks().artifacts(&caller, params::id(&run)?).await?)))
}

/// The name of an artifact.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    /// The file's name: 1 to 255 bytes, no slash, no backslash, no control character.
    #[param(example = "notes.md")]
    name: String,
}

/// Stores a file with a run, outside of any task. The same file again is the same artifact.
#[utoipa::path(
    post, path = "/v1/runs/{run}/artifacts", operation_id = "artifact_put", tag = "runs",
    params(("run" = String, Path, description = "The run's id."), Named),
    request_body(content = Vec<u8>, description = "The file.", content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "It is stored.", body = ArtifactView),
        (status = 400, description = "`bad_request`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    Params(named): Params<Named>,
    raw: Raw,
) -> Result<JsonBody<ArtifactView>, Problem> {
    let (run, data) = (params::id(&run)?, Vec::from(raw.bytes));
    Ok(JsonBody(api.engine.tasks().put_run_artifact(&caller, run, named.name, data).await?))
}

/// Downloads a file.
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact}", operation_id = "artifact_get", tag = "runs",
    params(("artifact" = String, Path, description = "The artifact's id.")),
    responses(
        (status = 200, description = "The file; `ETag` is its BLAKE3 hash.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(artifact): At<String>,
) -> Result<Response, Problem> {
    let (artifact, data) = api.engine.tasks().artifact(&caller, params::id(&artifact)?).await?;
    let kind = HeaderValue::from_static(content_type(&artifact.name));
    let disposition = HeaderValue::try_from(disposition(&artifact.name));
    let etag = HeaderValue::try_from(format!("\"{}\"", artifact.hash));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_DISPOSITION, disposition.expect("it is written in ASCII")),
        (header::ETAG, etag.expect("a hash is hex")),
        // If a browser opens it anyway, it runs no script and has no origin.
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((headers, data).into_response())
}

/// Returns the content type for a file name; types that a browser could execute are plain bytes.
fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("md") => "text/markdown; charset=utf-8",
        Some("txt" | "log" | "lua" | "diff" | "patch") => "text/plain; charset=utf-8",
        Some("csv") => "text/csv; charset=utf-8",
        Some("json") => "application/json",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        Some(_) | None => "application/octet-stream",
    }
}

/// Returns the header of a download with the file's own name: in ASCII for old clients, and
/// percent-encoded.
fn disposition(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || " .-_()+,".contains(c);
    let ascii: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let mut text = format!("attachment; filename=\"{ascii}\"");
    if ascii != name {
        text.push_str("; filename*=UTF-8''");
        text.push_str(&percent_encoded(name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_could_run_is_bytes() {
        assert_eq!(content_type("report.md"), "text/markdown; charset=utf-8");
        for name in ["x.html", "x.svg", "x.js", "x", "x.HTM", ".md.xhtml"] {
            assert_eq!(content_type(name), "application/octet-stream", "{name}");
        }
    }

    #[test]
    fn a_name_cannot_leave_its_header() {
        assert_eq!(disposition("out/report.md"), "attachment; filename=\"report.md\"");
        assert_eq!(
            disposition("ü\r\n\".md"),
            "attachment; filename=\"____.md\"; filename*=UTF-8''%C3%BC%0D%0A%22.md"
        );
    }
}
