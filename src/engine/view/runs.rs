//! The view of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    clock::rfc3339,
    engine::view::{
        shown::FailureView,
        spent::{self, SpentView},
        waits::WaitingOn,
    },
    journal::SeatHolder,
    protocol::{Failure, Json, RunId},
    session::EVERY,
    store::{Header, RunStatus, Used},
};

/// Changes on their way to a store that is not the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UndeliveredView {
    /// The scope.
    pub scope: String,
    /// The number.
    pub changes: usize,
    /// The reason why the store takes none, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: RunId,
    /// The blueprint's name.
    pub blueprint: String,
    /// The blueprint's hash, in hex.
    pub hash: String,
    /// The status: queued, running, waiting, paused, compensating, completed, failed, canceled.
    #[schema(value_type = String)]
    pub status: RunStatus,
    /// The last text of `ctx:status`.
    pub status_text: Option<String>,
    /// Between 0 and 1.
    pub progress: Option<f64>,
    /// The input; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Json>,
    /// The output of a completed run; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub output: Option<Json>,
    /// The reason why it failed, was canceled, or is paused.
    pub error: Option<FailureView>,
    /// The thing that it waits for.
    pub waiting_on: Vec<WaitingOn>,
    /// The changes that it has for stores that are not the host's, by scope; only where one run is
    /// asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<UndeliveredView>,
    /// Steps scheduled so far.
    pub steps: u32,
    /// Steps that ended.
    pub steps_done: u32,
    /// The attempts of the tasks and calls of its current history; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The run that called it.
    #[schema(value_type = Option<String>)]
    pub parent: Option<RunId>,
    /// The run that its history was copied from; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_from: Option<CopiedView>,
    /// The origin of the start: `{kind: "cli"}`, `{kind: "schedule", …}`; only in the view of a
    /// single run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub trigger: Option<Json>,
    /// The runs that it called, newest first, 20 at most; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildView>,
    /// Its limits with the used parts; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitView>,
    /// The verbs that this token has for it; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub can: Vec<String>,
    /// The subject that started it.
    pub started_by: String,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// The holders of the seats, by operator; only in the view of one run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seats: BTreeMap<String, SeatView>,
    /// The session that takes every task; only where one run is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegate: Option<String>,
    /// The usage, if it had tasks; in lists as of the last change of the run's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<SpentView>,
    /// About how many bytes it stores: its journal, its own state and its files.
    #[serde(default)]
    pub stored_bytes: u64,
    /// The number of its last event.
    pub last_event: u32,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// RFC 3339, UTC.
    pub updated_at: String,
    /// RFC 3339, UTC.
    pub ended_at: Option<String>,
    /// From its start to its end, in milliseconds; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// A limit of a run, and the used part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitView {
    /// `steps`, `time_ms`, `stored_bytes`, `tokens` or `usd`.
    pub name: String,
    /// The used part: a number as text.
    pub used: String,
    /// The limit: a number as text.
    pub allowed: String,
}

impl LimitView {
    /// Returns the used part in hundredths of the limit.
    pub fn percent(&self) -> u64 {
        let number = |text: &str| text.parse::<f64>().unwrap_or(0.0);
        let (used, allowed) = (number(&self.used), number(&self.allowed));
        if allowed > 0.0 { (used * 100.0 / allowed) as u64 } else { 0 }
    }

    /// Returns true if at least nine tenths are used.
    pub(crate) fn is_nearly_used(&self) -> bool {
        self.percent() >= 90
    }
}

/// A run that a run called.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ChildView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: RunId,
    /// The blueprint's name.
    pub blueprint: String,
    /// Its status.
    #[schema(value_type = String)]
    pub status: RunStatus,
    /// The step that called it.
    pub step: u32,
}

/// The origin of a copied history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopiedView {
    /// The other run's id.
    pub run: String,
    /// The first step that a fork did anew; absent where a document was taken in.
    pub step: Option<u32>,
}

/// The holder of an operator's seat in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SeatView {
    /// The session.
    pub session: String,
    /// Counts up with every change, from 1.
    pub epoch: u32,
}

/// Returns the view of a run's header.
pub(crate) fn run(header: &Header) -> RunView {
    let waiting_on = header.waiting_on.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let error = header.error.as_deref().and_then(|text| serde_json::from_str::<Failure>(text).ok());
    RunView {
        id: RunId::new(header.num, header.created_ms),
        blueprint: header.blueprint.clone(),
        hash: header.hash.clone(),
        status: header.status,
        status_text: header.status_text.clone(),
        progress: header.progress,
        input: None,
        output: None,
        error: error.map(FailureView::from),
        waiting_on: waiting_on.unwrap_or_default(),
        steps: header.steps,
        steps_done: header.steps_done,
        attempts: None,
        parent: None,
        copied_from: None,
        trigger: None,
        children: Vec::new(),
        undelivered: Vec::new(),
        limits: Vec::new(),
        can: Vec::new(),
        started_by: header.principal.clone(),
        tags: header.tags.as_map().clone(),
        seats: BTreeMap::new(),
        delegate: None,
        usage: spent::view(&Used::parse(header.used.as_deref()).spent),
        stored_bytes: header.bytes,
        last_event: header.seq,
        created_at: rfc3339(header.created_ms),
        updated_at: rfc3339(header.updated_ms),
        ended_at: header.ended_ms.map(rfc3339),
        duration_ms: header.ended_ms.map(|ended| ended.saturating_sub(header.created_ms)),
    }
}

/// Returns the view of a run's seats.
pub(crate) fn seats(held: &BTreeMap<String, SeatHolder>) -> BTreeMap<String, SeatView> {
    let view = |it: &SeatHolder| SeatView { session: it.session.clone(), epoch: it.epoch };
    let seated = held.iter().filter(|(operator, _)| *operator != EVERY);
    seated.map(|(operator, it)| (operator.clone(), view(it))).collect()
}
