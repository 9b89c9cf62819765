//! The context of an attempt: the earlier steps and files that its agent names, for its bearer.

use axum::{
    Json as JsonBody,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        app::Api,
        params::{self, At, Params, Reporter},
    },
    archive::Archive,
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{ContextStep, ContextView},
};

/// The form of a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum Form {
    /// One document.
    #[default]
    Json,
    /// An archive with a file for each output and each artifact.
    Tar,
}

/// Which form.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct ContextParams {
    /// `json` (the default) or `tar`.
    #[serde(default)]
    #[param(inline)]
    format: Form,
}

/// Gives the earlier steps with their outputs, and the files, that the agent's `context` names.
#[utoipa::path(
    get, path = "/v1/worker/context", operation_id = "worker_context", tag = "worker",
    params(ContextParams),
    responses(
        (status = 200, description = "All of them, as JSON or as a tar.", content(
            (ContextView = "application/json"),
            (Vec<u8> = "application/x-tar"),
        )),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
        (status = 413, description = "`too_large`: open them one by one", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn context(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    Params(params): Params<ContextParams>,
) -> Result<Response, Problem> {
    let view = api.engine.tasks().worker_context(&holder).await?;
    if params.format == Form::Json {
        return Ok(JsonBody(view).into_response());
    }
    let files = api.engine.tasks().worker_context_files(&view).await?;
    let mut archive = Archive::default();
    for step in &view.steps {
        let name = format!("steps/{:04}-{}.json", step.step, plain(&step.name));
        archive.add(&name, step.output.as_str().as_bytes());
    }
    for (artifact, data) in view.artifacts.iter().zip(&files) {
        let name = format!("artifacts/{:04}-{}", artifact.id.number(), plain(&artifact.name));
        archive.add(&name, data);
    }
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], archive.finish()).into_response())
}

/// A name as it is safe in any directory: letters, digits, `-`, `_` and single dots.
fn plain(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars().take(60) {
        let fits =
            c.is_ascii_alphanumeric() || c == '-' || c == '_' || (c == '.' && !text.ends_with('.'));
        text.push(if fits { c } else { '_' });
    }
    text
}

/// Gives the output of one of these steps.
#[utoipa::path(
    get, path = "/v1/worker/context/steps/{step}", operation_id = "worker_context_step", tag = "worker",
    params(("step" = u32, Path, description = "The step's number.")),
    responses(
        (status = 200, description = "The step with its output.", body = ContextStep),
        (status = 404, description = "`not_found`: the context has no such step", body = ProblemBody),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn step(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    At(step): At<String>,
) -> Result<JsonBody<ContextStep>, Problem> {
    let step = params::number(&step)?;
    Ok(JsonBody(api.engine.tasks().worker_context_step(&holder, step).await?))
}

/// Gives one of these files.
#[utoipa::path(
    get, path = "/v1/worker/context/artifacts/{artifact}", operation_id = "worker_context_artifact", tag = "worker",
    params(("artifact" = String, Path, description = "The artifact's id.")),
    responses(
        (status = 200, description = "The file; `ETag` is its BLAKE3 hash.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "`not_found`: the context has no such file", body = ProblemBody),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn artifact(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    At(artifact): At<String>,
) -> Result<Response, Problem> {
    let id = params::id(&artifact)?;
    let (artifact, data) = api.engine.tasks().worker_context_artifact(&holder, id).await?;
    let etag = HeaderValue::try_from(format!("\"{}\"", artifact.hash));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::ETAG, etag.expect("a hash is hex")),
    ];
    Ok((headers, data).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere() {
        assert_eq!(plain("report.md"), "report.md");
        for name in ["../../etc/passwd", "..", "a/../b", "\u{0}\n"] {
            let text = plain(name);
            assert!(!text.contains("..") && !text.contains('/'), "{text}");
        }
    }
}
