//! Runs that are started once more.

use axum::{extract::State, response::Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Key},
    runs::created,
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{RerunVersion, RunView},
};

/// The version of a run that is started once more.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum VersionWord {
    /// That of the earlier run.
    #[default]
    Same,
    /// The one that the blueprint's name refers to now.
    Newest,
}

impl From<VersionWord> for RerunVersion {
    fn from(word: VersionWord) -> Self {
        match word {
            VersionWord::Same => Self::Same,
            VersionWord::Newest => Self::Newest,
        }
    }
}

/// The options of a rerun.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RerunBody {
    /// The version of the blueprint: `same` (the default) or `newest`.
    #[serde(default)]
    #[schema(inline)]
    version: VersionWord,
}

/// Starts a run with the input and the tags of another one.
///
/// The new run has a history, a seed and a state of its own. Its trigger is `{kind: "rerun", run}`.
#[utoipa::path(
    post, path = "/v1/runs/{run}/rerun", operation_id = "run_rerun", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body(content = Option<RerunBody>, description = "May be absent."),
    responses(
        (status = 201, description = "The new run; `Location` names it.", body = RunView),
        (status = 404, description = "`not_found`: the run, or its version", body = ProblemBody),
        (status = 409, description = "`idempotency_mismatch`, `blueprint_archived`", body = ProblemBody),
        (status = 422, description = "`invalid_input` with `violations`: the newest version takes another input", body = ProblemBody),
    ),
)]
pub(super) async fn rerun(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    key: Key,
    posted: Posted<Option<RerunBody>>,
) -> Result<Response, Problem> {
    let run = params::id(&run)?;
    let key = key.of("POST /v1/runs/{run}/rerun", &posted.raw);
    let RerunBody { version } = posted.body.unwrap_or_default();
    Ok(created(&api.engine.rerun(&caller, run, version.into(), key).await?))
}
