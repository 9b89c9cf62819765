//! Erasing what the host stores of a person.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{app::Api, body::Posted, params, params::Asker};
use crate::{
    door::{Code, Problem, ProblemBody},
    engine::{Erase, EraseView, Erased},
    protocol::RunId,
};

/// The target of the erasure: exactly one of `subject`, `runs` and `match`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EraseBody {
    /// Everything of this subject: its runs, with those that they called, their forks and reruns; its
    /// tokens, sessions, answers, and state of its name.
    subject: Option<String>,
    /// These runs, those that they called, their forks and reruns, at most 2,000.
    runs: Option<Vec<String>>,
    /// Everything that contains this text of 4 to 1,024 bytes: whole runs, and rows outside of runs.
    #[serde(rename = "match")]
    text: Option<String>,
    /// True to change nothing, and see what would go.
    #[serde(default)]
    dry_run: bool,
    /// The `digest` of the dry run; needed for the act.
    digest: Option<String>,
}

impl EraseBody {
    fn into_erase(self) -> Result<Erase, Problem> {
        let bad = |detail: &str, at: &str| Problem::new(Code::InvalidBody, detail).at(at);
        let what = match (self.subject, self.runs, self.text) {
            (Some(subject), None, None) => Erased::Subject(subject),
            (None, Some(ids), None) => {
                let mut runs =
                    ids.iter().map(|id| params::id(id)).collect::<Result<Vec<RunId>, _>>()?;
                runs.sort_unstable();
                runs.dedup();
                Erased::Runs(runs)
            }
            (None, None, Some(text)) => Erased::Match(text),
            _ => return Err(bad("give one of `subject`, `runs` and `match`", "$")),
        };
        let digest = match (self.dry_run, self.digest) {
            (true, _) => None,
            (false, Some(digest)) => Some(digest),
            (false, None) => {
                let detail = "the act repeats the `digest` that a dry run (`dry_run: true`) gave";
                return Err(bad(detail, "$.digest"));
            }
        };
        Ok(Erase { what, digest })
    }
}

/// Erases everything of a person, of runs, or that contains a text: first a dry run, then the act.
///
/// A dry run lists what would go, with a `digest`; the act repeats the digest. Runs that have not ended
/// prevent it. The database is written anew at the end, so that no deleted byte is left; writes wait
/// meanwhile. With `match` that is also done if nothing is found. The audit log keeps a line with numbers only.
#[utoipa::path(
    post, path = "/v1/erase", operation_id = "host_erase", tag = "host",
    request_body = EraseBody,
    responses(
        (status = 200, description = "What went, or would go; where `more`, ask again.", body = EraseView),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 409, description = "`selection_changed`, `not_ended`, `in_use`", body = ProblemBody),
        (status = 507, description = "`storage_full`", body = ProblemBody),
    ),
)]
pub(super) async fn erase(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<EraseBody>,
) -> Result<JsonBody<EraseView>, Problem> {
    let view = api.engine.upkeep().erase(&caller, posted.body.into_erase()?).await?;
    Ok(JsonBody(view))
}
