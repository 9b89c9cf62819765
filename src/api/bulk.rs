//! One act on many runs.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, Key},
    run_list::ListParams,
};
use crate::{
    door::{Code, Problem, ProblemBody},
    engine::{Bulk, BulkAct, BulkRuns, BulkView, MOST_RUNS},
    protocol::RunId,
};

/// The filters of a list of runs; each as in `GET /v1/runs`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkFilter {
    /// Any of these statuses.
    #[serde(default)]
    status: Vec<String>,
    /// This blueprint.
    blueprint: Option<String>,
    /// All these tags: `name=value`, or `name`.
    #[serde(default)]
    tag: Vec<String>,
    /// Started by this subject.
    started_by: Option<String>,
    /// Called by this run.
    parent: Option<String>,
    /// Created at or after this time.
    since: Option<String>,
    /// Created before this time.
    until: Option<String>,
    /// Ended at or after this time.
    ended_since: Option<String>,
    /// Ended before this time.
    ended_until: Option<String>,
    /// An error of this kind.
    #[serde(alias = "error")]
    kind: Option<String>,
    /// A task of this agent.
    agent: Option<String>,
    /// Waits for this.
    waiting_on: Option<String>,
    /// These words.
    q: Option<String>,
    /// A reported cost of at least this, in US dollars.
    min_cost: Option<String>,
}

/// An act on many runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkBody {
    /// The act: `cancel`, `pause`, `resume`, `delete` or `rerun`.
    #[schema(value_type = String, pattern = "^(cancel|pause|resume|delete|rerun)$")]
    action: BulkAct,
    /// The runs, at most 500. Either this, or `filter`.
    ids: Option<Vec<String>>,
    /// The newest runs that fit, at most 500 among the newest 5,000.
    filter: Option<BulkFilter>,
    /// True to do nothing, and see what is eligible.
    #[serde(default)]
    dry_run: bool,
    /// The `digest` of the dry run; needed for the act.
    digest: Option<String>,
    /// The reason of a cancel or a pause, for the history of each run.
    reason: Option<String>,
}

impl BulkBody {
    fn into_bulk(self, key: Option<String>) -> Result<Bulk, Problem> {
        let bad = |detail: &str, at: &str| Problem::new(Code::InvalidBody, detail).at(at);
        let runs = match (self.ids, self.filter) {
            (Some(ids), None) if ids.len() <= MOST_RUNS => BulkRuns::Ids(distinct(&ids)?),
            (Some(_), None) => return Err(bad("`ids` names at most 500 runs", "$.ids")),
            (None, Some(filter)) => BulkRuns::Filter(Box::new(filter.into_params().into_filter()?)),
            _ => return Err(bad("give `ids` or `filter`", "$")),
        };
        let digest = match (self.dry_run, self.digest) {
            (true, _) => None,
            (false, Some(digest)) => Some(digest),
            (false, None) => {
                let detail = "the act repeats the `digest` that a dry run (`dry_run: true`) gave";
                return Err(bad(detail, "$.digest"));
            }
        };
        let reason = self.reason.unwrap_or_else(|| "together with others".to_owned());
        Ok(Bulk { runs, act: self.action, digest, reason, key })
    }
}

impl BulkFilter {
    fn into_params(self) -> ListParams {
        let joined = |all: Vec<String>, between| (!all.is_empty()).then(|| all.join(between));
        ListParams {
            status: joined(self.status, ","),
            blueprint: self.blueprint,
            tag: joined(self.tag, "\n"),
            started_by: self.started_by,
            parent: self.parent,
            since: self.since,
            until: self.until,
            ended_since: self.ended_since,
            ended_until: self.ended_until,
            kind: self.kind,
            agent: self.agent,
            waiting_on: self.waiting_on,
            q: self.q,
            min_cost: self.min_cost,
            limit: None,
            cursor: None,
        }
    }
}

fn distinct(ids: &[String]) -> Result<Vec<RunId>, Problem> {
    let mut runs = ids.iter().map(|id| params::id(id)).collect::<Result<Vec<RunId>, _>>()?;
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

/// Cancels, pauses, resumes, deletes or starts again many runs: first a dry run, then the act.
///
/// A dry run lists what is eligible, with a `digest` of the selection. The act repeats the digest; if
/// a run has changed its status since then, nothing is done. Each run has a result of its own. Needs
/// the verb of the act as well; a dry run of `delete` needs only a role that has it.
#[utoipa::path(
    post, path = "/v1/runs/bulk", operation_id = "run_bulk", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition of `rerun` harmless for 24 hours.")),
    request_body = BulkBody,
    responses(
        (status = 200, description = "Each selected run with its result.", body = BulkView),
        (status = 409, description = "`selection_changed`", body = ProblemBody),
    ),
)]
pub(super) async fn bulk(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<BulkBody>,
) -> Result<JsonBody<BulkView>, Problem> {
    Ok(JsonBody(api.engine.bulk(&caller, posted.body.into_bulk(key.bare())?).await?))
}
