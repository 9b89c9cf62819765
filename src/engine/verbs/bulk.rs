//! One act on many runs: first what it would do, then the act.
//!
//! The act names the digest of the selection that the dry run gave. A run that has started, moved on
//! or ended since then changes the digest, and nothing is done.

use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, Engine, EngineError, IdempotencyKey, RerunVersion},
    protocol::{Code, RunId},
    store::{Header, RunFilter, RunStatus},
    token::{Need, ScopeKind, Verb, permits},
};

/// The maximum number of runs of one act.
pub const MOST_RUNS: usize = 500;
/// The maximum number of rows that are looked at for a filter.
const LOOK: usize = 5_000;
/// The number of runs that are acted on at the same time.
const AT_ONCE: usize = 16;

/// An act on many runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAct {
    /// Cancels open runs.
    Cancel,
    /// Pauses open runs.
    Pause,
    /// Resumes paused runs.
    Resume,
    /// Deletes ended runs.
    Delete,
    /// Starts ended runs again, with the same version.
    Rerun,
}

impl BulkAct {
    fn verb(self) -> Verb {
        match self {
            Self::Cancel => Verb::RunCancel,
            Self::Pause => Verb::RunPause,
            Self::Resume => Verb::RunResume,
            Self::Delete => Verb::RunDelete,
            Self::Rerun => Verb::RunStart,
        }
    }

    /// Returns true if a run of this status is eligible.
    fn takes(self, status: RunStatus) -> bool {
        match self {
            // A second cancel would cut short what a run defers.
            Self::Cancel => !status.is_ended() && status != RunStatus::Compensating,
            Self::Pause => !status.is_ended() && status != RunStatus::Paused,
            Self::Resume => status == RunStatus::Paused,
            Self::Delete | Self::Rerun => status.is_ended(),
        }
    }
}

/// The runs of an act.
#[derive(Debug, Clone)]
pub enum BulkRuns {
    /// These runs.
    Ids(Vec<RunId>),
    /// The newest runs that fit, [`MOST_RUNS`] at most.
    Filter(Box<RunFilter>),
}

/// A request for an act on many runs.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// The runs.
    pub runs: BulkRuns,
    /// The act.
    pub act: BulkAct,
    /// The digest of the dry run; absent for a dry run.
    pub digest: Option<String>,
    /// The reason of a cancel or a pause.
    pub reason: String,
    /// The idempotency key, for runs that are started again.
    pub key: Option<String>,
}

impl Bulk {
    /// Returns the verb that the request needs. A dry run deletes nothing: a narrowed token of a role
    /// that deletes, such as the sign-in of an admin, may see what another one would do.
    fn needs(&self, caller: &Caller) -> Verb {
        let looks = self.act == BulkAct::Delete && self.digest.is_none();
        match looks && permits(caller.grant.role, Verb::RunDelete) {
            true => Verb::RunRead,
            false => self.act.verb(),
        }
    }
}

/// The result of an act on many runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BulkView {
    /// The act.
    #[schema(value_type = String, pattern = "^(cancel|pause|resume|delete|rerun)$")]
    pub action: BulkAct,
    /// True if nothing was done.
    pub dry_run: bool,
    /// The digest of the selection. The act repeats it.
    pub digest: String,
    /// The number of eligible runs.
    pub eligible: u32,
    /// Each selected run.
    pub items: Vec<BulkItem>,
    /// True if more runs may fit than are selected: 500 at most, among the newest 5,000.
    pub more: bool,
}

/// A run of an act on many.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BulkItem {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// Its blueprint; absent if there is no such run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprint: Option<String>,
    /// Its status before the act; absent if there is no such run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub status: Option<RunStatus>,
    /// `eligible` in a dry run, `done`, `unchanged` where there is nothing to do, or the code of the
    /// refusal: `not_found`, `run_closed`, `not_ended`, `forbidden_scope`.
    pub result: String,
    /// The run that was started, for `rerun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub started: Option<RunId>,
    /// The reason of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The word for a run that the act takes.
const ELIGIBLE: &str = "eligible";
/// The word for a run that is as the act would leave it.
const UNCHANGED: &str = "unchanged";

impl Engine {
    /// Acts on many runs, or reports what the act would do.
    ///
    /// # Errors
    /// Fails when the caller lacks the verb, or the selection is not that of the digest. The refusal
    /// of one run is its result, and no error.
    pub async fn bulk(&self, caller: &Caller, bulk: Bulk) -> Result<BulkView, EngineError> {
        let verb = bulk.needs(caller);
        caller.grant.check(verb, &[])?;
        let (mut items, more) = self.selected(caller, &bulk, verb).await?;
        let digest = digest(bulk.act, &items);
        let eligible = items.iter().filter(|item| item.result == ELIGIBLE).count();
        let dry_run = bulk.digest.is_none();
        if let Some(given) = &bulk.digest {
            if *given != digest {
                return Err(EngineError::Conflict {
                    code: Code::SelectionChanged,
                    message: "act on these runs: their statuses are not those of the digest; do a \
                              dry run again"
                        .to_owned(),
                });
            }
            let acts = items.into_iter().map(|item| self.act(caller, &bulk, item));
            items = stream::iter(acts).buffered(AT_ONCE).collect().await;
        }
        let eligible = u32::try_from(eligible).unwrap_or(u32::MAX);
        Ok(BulkView { action: bulk.act, dry_run, digest, eligible, items, more })
    }

    /// Returns the selected runs, each with what the act would do.
    async fn selected(
        &self,
        caller: &Caller,
        bulk: &Bulk,
        verb: Verb,
    ) -> Result<(Vec<BulkItem>, bool), EngineError> {
        // To start a run again is an act on its blueprint, and reads the run.
        let verb = if bulk.act == BulkAct::Rerun { Verb::RunRead } else { verb };
        let item =
            |run: RunId, header: Option<&Header>| item(caller, (bulk.act, verb), run, header);
        match bulk.runs.clone() {
            BulkRuns::Filter(filter) => {
                caller.grant.check(Verb::RunRead, &[Need::Every(ScopeKind::Run)])?;
                let filter = RunFilter { limit: MOST_RUNS, look: Some(LOOK), ..*filter };
                let page = self.read(move |store| store.runs(&filter)).await?;
                let items = page.headers.iter().map(|it| item(it.id(), Some(it)));
                Ok((items.collect(), page.next.is_some()))
            }
            BulkRuns::Ids(ids) => {
                let wanted = ids.clone();
                let headers = self.read(move |store| {
                    wanted.iter().map(|run| store.header(run.num())).collect::<Result<Vec<_>, _>>()
                });
                let headers = headers.await?;
                let items = ids.into_iter().zip(headers).map(|(run, header)| {
                    let header = header.filter(|header| header.created_ms == run.created_ms());
                    item(run, header.as_ref())
                });
                Ok((items.collect(), false))
            }
        }
    }

    async fn act(&self, caller: &Caller, bulk: &Bulk, mut item: BulkItem) -> BulkItem {
        if item.result != ELIGIBLE {
            return item;
        }
        let (run, reason) = (item.run, bulk.reason.clone());
        let result = match bulk.act {
            BulkAct::Cancel => self.cancel(caller, run, reason, None).await.map(|_| None),
            BulkAct::Pause => self.pause(caller, run, reason).await.map(|_| None),
            BulkAct::Resume => self.resume(caller, run).await.map(|_| None),
            BulkAct::Delete => self.delete_run(caller, run).await.map(|()| None),
            BulkAct::Rerun => {
                let key = bulk.key.as_ref().map(|key| IdempotencyKey {
                    route: "POST /v1/runs/bulk",
                    key: format!("{key} {run}"),
                    body: run.to_string(),
                });
                let made = self.rerun(caller, run, RerunVersion::Same, key).await;
                made.map(|made| Some(made.id()))
            }
        };
        match result {
            Ok(started) => {
                "done".clone_into(&mut item.result);
                item.started = started;
            }
            Err(error) => {
                error.code().as_str().clone_into(&mut item.result);
                item.detail = Some(error.to_string());
            }
        }
        item
    }
}

/// Returns a run of the selection with what the act would do.
fn item(
    caller: &Caller,
    (act, verb): (BulkAct, Verb),
    run: RunId,
    header: Option<&Header>,
) -> BulkItem {
    let result = match header {
        None => Code::NotFound.as_str(),
        Some(_) if caller.may(verb, run).is_err() => Code::ForbiddenScope.as_str(),
        Some(header) if act.takes(header.status) => ELIGIBLE,
        Some(header) if header.status.is_ended() => Code::RunClosed.as_str(),
        Some(_) if matches!(act, BulkAct::Delete | BulkAct::Rerun) => Code::NotEnded.as_str(),
        Some(_) => UNCHANGED,
    };
    let readable = header.filter(|_| caller.may(Verb::RunRead, run).is_ok());
    BulkItem {
        run,
        blueprint: readable.map(|header| header.blueprint.clone()),
        status: readable.map(|header| header.status),
        result: result.to_owned(),
        started: None,
        detail: None,
    }
}

/// Returns the digest of a selection: the act, and each run with what would be done to it.
fn digest(act: BulkAct, items: &[BulkItem]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(act.verb().as_str().as_bytes());
    for item in items {
        let status = item.status.map_or("", RunStatus::as_str);
        hasher.update(format!("\n{} {status} {}", item.run, item.result).as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
