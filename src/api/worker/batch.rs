//! Requests of many attempts at once: results, and heartbeats. The bearer is the token that leases; each
//! item has the credential of its own attempt, and an answer of its own.

use std::sync::Arc;

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AcceptedView, ResultBody, report_of};
use crate::{
    api::{
        app::Api,
        body::{Posted, Raw, read_items, read_json},
        params::{self, Asker},
    },
    door::{Code, Problem, ProblemBody},
    engine::{Caller, Carrier, HeartbeatView, Holder, Report},
    protocol::Json,
    token::Verb,
};

/// The maximum number of items of one request.
const MOST_ITEMS: usize = 1_000;

/// The result of one attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct CarriedResult {
    /// The handle of the attempt, or a token for it.
    handle: String,
    /// Marks a repetition; without it the result does.
    idempotency_key: Option<String>,
    /// The body of `POST /v1/worker/result`.
    #[schema(value_type = ResultBody)]
    result: Json,
}

/// The results of many attempts. Each item is read by itself: one that cannot be read refuses itself
/// only.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the schema of the body in the OpenAPI document")]
pub(in crate::api) struct ResultsBody {
    /// At most 1,000.
    #[schema(max_items = 1_000)]
    results: Vec<CarriedResult>,
}

/// The answers to the items of a request, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ResultsView {
    /// One for each.
    items: Vec<ResultVerdict>,
}

/// The answer to one result.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ResultVerdict {
    /// The status that `POST /v1/worker/result` would have.
    status: u16,
    /// The acceptance; absent if it was refused.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    accepted: Option<AcceptedView>,
    /// The refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// Reports how many tasks went. Each result is accepted or refused by itself, exactly as by
/// `POST /v1/worker/result`, and what is accepted is durable with the answer.
#[utoipa::path(
    post, path = "/v1/worker/results", operation_id = "worker_results", tag = "worker",
    request_body = ResultsBody,
    responses((status = 200, description = "Each result with its own answer.", body = ResultsView)),
)]
pub(in crate::api) async fn results(
    State(api): State<Api>,
    Asker(caller): Asker,
    raw: Raw,
) -> Result<JsonBody<ResultsView>, Problem> {
    raw.expect_json()?;
    let items = read_items(&raw.bytes, "results", MOST_ITEMS)?;
    let carrier = carrier(&caller);
    let mut slots = Vec::with_capacity(items.len());
    let mut reports = Vec::with_capacity(items.len());
    for item in items {
        slots.push(read_report(&api, &caller, &carrier, item).map(|report| reports.push(report)));
    }
    let mut answers = api.engine.tasks().report_all(reports).await.into_iter();
    let items = slots.into_iter().map(|slot| {
        let accepted = slot.and_then(|()| match answers.next() {
            Some(answer) => Ok(AcceptedView::new(answer?)),
            None => Err(Problem::new(Code::Internal, "a result was not answered")),
        });
        match accepted {
            Ok(accepted) => ResultVerdict { status: OK, accepted: Some(accepted), problem: None },
            Err(problem) => {
                let (status, problem) = refused(&problem);
                ResultVerdict { status, accepted: None, problem }
            }
        }
    });
    Ok(JsonBody(ResultsView { items: items.collect() }))
}

/// The status of an item that was taken.
const OK: u16 = StatusCode::OK.as_u16();

fn refused(problem: &Problem) -> (u16, Option<ProblemBody>) {
    (problem.status().as_u16(), Some(problem.body().clone()))
}

fn carrier(caller: &Caller) -> Arc<Carrier> {
    Arc::new(Carrier { jti: caller.jti.clone(), grant: caller.grant.clone() })
}

/// Reads one result, with the credential of its attempt.
fn read_report(
    api: &Api,
    caller: &Caller,
    carrier: &Arc<Carrier>,
    item: &str,
) -> Result<(Holder, Report), Problem> {
    let CarriedResult { handle, idempotency_key, result } = read_json(item.as_bytes())?;
    let holder = holder(api, caller, carrier, Verb::WorkerResult, &handle)?;
    let key = params::framed_key(idempotency_key)?;
    let body: ResultBody = read_json(result.as_str().as_bytes())?;
    let (verdict, usage, effects) = body.into_parts()?;
    Ok((holder, report_of(result.as_str(), key, verdict, usage, effects)))
}

/// Authenticates the credential of an item.
fn holder(
    api: &Api,
    caller: &Caller,
    carrier: &Arc<Carrier>,
    verb: Verb,
    handle: &str,
) -> Result<Holder, Problem> {
    let mut holder = api.door.admit_carried(&api.engine, caller, verb, handle)?;
    holder.carrier = Some(Arc::clone(carrier));
    Ok(holder)
}

/// The attempts to keep.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct HeartbeatsBody {
    /// The handle of each attempt, or a token for it; at most 1,000.
    #[schema(max_items = 1_000)]
    handles: Vec<String>,
}

/// The answers to the handles of a request, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct HeartbeatsView {
    /// One for each.
    items: Vec<HeartbeatVerdict>,
}

/// The answer to one heartbeat.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct HeartbeatVerdict {
    /// The status that `POST /v1/worker/heartbeat` would have.
    status: u16,
    /// The kept attempt; absent if it was refused.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    kept: Option<HeartbeatView>,
    /// The refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// Keeps many attempts and says of each whether to stop.
#[utoipa::path(
    post, path = "/v1/worker/heartbeats", operation_id = "worker_heartbeats", tag = "worker",
    request_body = HeartbeatsBody,
    responses((status = 200, description = "Each handle with its own answer.", body = HeartbeatsView)),
)]
pub(in crate::api) async fn heartbeats(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<HeartbeatsBody>,
) -> Result<JsonBody<HeartbeatsView>, Problem> {
    let HeartbeatsBody { handles } = posted.body;
    if handles.len() > MOST_ITEMS {
        let detail = format!("a request has at most {MOST_ITEMS} handles");
        return Err(Problem::new(Code::InvalidBody, detail).at("$.handles"));
    }
    let carrier = carrier(&caller);
    let mut slots = Vec::with_capacity(handles.len());
    let mut holders = Vec::with_capacity(handles.len());
    for handle in &handles {
        let holder = holder(&api, &caller, &carrier, Verb::WorkerHeartbeat, handle);
        slots.push(holder.map(|holder| holders.push(holder)));
    }
    let mut answers = api.engine.tasks().heartbeat_all(holders).await.into_iter();
    let items = slots.into_iter().map(|slot| {
        let kept = slot.and_then(|()| match answers.next() {
            Some(answer) => Ok(answer?),
            None => Err(Problem::new(Code::Internal, "a heartbeat was not answered")),
        });
        match kept {
            Ok(kept) => HeartbeatVerdict { status: OK, kept: Some(kept), problem: None },
            Err(problem) => {
                let (status, problem) = refused(&problem);
                HeartbeatVerdict { status, kept: None, problem }
            }
        }
    });
    Ok(JsonBody(HeartbeatsView { items: items.collect() }))
}
