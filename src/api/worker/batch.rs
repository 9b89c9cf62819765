//! Requests of many attempts at once: results, perhaps with a lease of the next tasks, and
//! heartbeats. The bearer is the token that leases; each item has the credential of its own attempt,
//! and an answer of its own.

use std::sync::Arc;

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AcceptedView, LeaseBody, ResultBody, report_of, views};
use crate::{
    api::{
        app::Api,
        body::{Items, Posted, Raw, read_items, read_json},
        params::{self, Asker},
    },
    door::{Code, Problem, ProblemBody},
    engine::{Caller, Carrier, HeartbeatView, Holder, LeaseView, Report},
    protocol::Json,
    token::{Grant, Verb},
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
    /// Asks for tasks as well, the body of `POST /v1/worker/lease`. What the results bring about, such
    /// as the next steps of their flows, is leased in the commits that accept them. The wait begins
    /// when the results are answered.
    lease: Option<LeaseBody>,
}

/// The answers to results, in their order, and what was leased.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ResultAnswers {
    /// One for each result.
    items: Vec<ItemAnswer<AcceptedView>>,
    /// The tasks; present if the request has a `lease`. It may be empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    leased: Option<Vec<LeaseView>>,
}

/// The answers to the items of a request, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct ItemAnswers<T> {
    /// One for each item.
    items: Vec<ItemAnswer<T>>,
}

/// The answer to one item: the same that a request of its own would have.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum ItemAnswer<T> {
    /// The item was accepted.
    Accepted {
        /// The status, 200.
        status: u16,
        #[serde(flatten)]
        answer: T,
    },
    /// The item was refused.
    Refused {
        /// The status of the refusal.
        status: u16,
        /// The refusal.
        #[schema(value_type = ProblemBody)]
        problem: Box<ProblemBody>,
    },
}

impl<T> ItemAnswers<T> {
    /// Joins the items that could not be read with the answers of the engine to the others.
    fn new<E: Into<Problem>>(
        read: Vec<Result<(), Problem>>,
        answers: impl IntoIterator<Item = Result<T, E>>,
    ) -> Self {
        let mut answers = answers.into_iter();
        let items = read.into_iter().map(|item| {
            let answer = item.and_then(|()| match answers.next() {
                Some(answer) => answer.map_err(Into::into),
                None => Err(Problem::new(Code::Internal, "an item was not answered")),
            });
            match answer {
                Ok(answer) => ItemAnswer::Accepted { status: StatusCode::OK.as_u16(), answer },
                Err(problem) => ItemAnswer::Refused {
                    status: problem.status().as_u16(),
                    problem: Box::new(problem.body().clone()),
                },
            }
        });
        Self { items: items.collect() }
    }
}

/// Reports the results of many attempts. Each result is accepted or refused by itself, exactly as by
/// `POST /v1/worker/result`, and what is accepted is durable with the answer. With `lease` the same
/// request leases the next tasks.
#[utoipa::path(
    post, path = "/v1/worker/results", operation_id = "worker_results", tag = "worker",
    request_body = ResultsBody,
    responses((status = 200, description = "Each result with its own answer, and the leased tasks.", body = ResultAnswers)),
)]
pub(in crate::api) async fn results(
    State(api): State<Api>,
    Asker(caller): Asker,
    raw: Raw,
) -> Result<JsonBody<ResultAnswers>, Problem> {
    raw.expect_json()?;
    let Items { items, other } = read_items(&raw.bytes, "results", "lease", MOST_ITEMS)?;
    let wanted = other.filter(|text| *text != "null").map(|text| {
        let body: LeaseBody = read_json(text.as_bytes())?;
        body.read(&caller)
    });
    let wanted = wanted.transpose().map_err(|problem| problem.within("lease"))?;
    let carrier = carrier(&caller);
    let mut read = Vec::with_capacity(items.len());
    let mut reports = Vec::with_capacity(items.len());
    for item in items {
        read.push(read_report(&api, &caller, &carrier, item).map(|report| reports.push(report)));
    }
    let tasks = api.engine.tasks();
    let (answers, leased) = match wanted {
        Some(wanted) => {
            let ask = wanted.ask();
            let both = Box::pin(tasks.report_and_lease(&caller, reports, &ask));
            let (answers, leased) = both.await?;
            (answers, Some(views(leased)))
        }
        None => (tasks.report_all(reports).await, None),
    };
    let answers = answers.into_iter().map(|answer| answer.map(AcceptedView::new));
    Ok(JsonBody(ResultAnswers { items: ItemAnswers::new(read, answers).items, leased }))
}

fn carrier(caller: &Caller) -> Arc<Carrier> {
    Arc::new(Carrier { jti: caller.jti.clone(), grant: Grant::clone(&caller.grant) })
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

/// Keeps many attempts and says of each whether to stop.
#[utoipa::path(
    post, path = "/v1/worker/heartbeats", operation_id = "worker_heartbeats", tag = "worker",
    request_body = HeartbeatsBody,
    responses((status = 200, description = "Each handle with its own answer.", body = ItemAnswers<HeartbeatView>)),
)]
pub(in crate::api) async fn heartbeats(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<HeartbeatsBody>,
) -> Result<JsonBody<ItemAnswers<HeartbeatView>>, Problem> {
    let HeartbeatsBody { handles } = posted.body;
    if handles.len() > MOST_ITEMS {
        let detail = format!("a request has at most {MOST_ITEMS} handles");
        return Err(Problem::new(Code::InvalidBody, detail).at("$.handles"));
    }
    let carrier = carrier(&caller);
    let mut read = Vec::with_capacity(handles.len());
    let mut holders = Vec::with_capacity(handles.len());
    for handle in &handles {
        let holder = holder(&api, &caller, &carrier, Verb::WorkerHeartbeat, handle);
        read.push(holder.map(|holder| holders.push(holder)));
    }
    let answers = api.engine.tasks().heartbeat_all(holders).await;
    Ok(JsonBody(ItemAnswers::new(read, answers)))
}
