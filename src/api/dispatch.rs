//! Dispatches: one task for one operator, or several at once.

use axum::{
    Json as JsonBody,
    extract::State,
    response::{IntoResponse, Response},
};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker},
};
use crate::{
    blueprint::parse_duration,
    door::{Code, Problem, ProblemBody},
    engine::{Caller, DispatchInput, DispatchView},
    protocol::{DurationMs, OperatorInput},
};

/// The maximum number of dispatches in one request.
const MOST: usize = 100;
/// The number of dispatches that run concurrently.
const AT_ONCE: usize = 32;
/// The default time for which a request waits.
const WAIT: &str = "60s";

/// One dispatch, or a list of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum DispatchBody {
    /// Several: each has its answer, in their order.
    Many(Vec<OneBody>),
    /// One.
    One(OneBody),
}

/// A task for an operator.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneBody {
    /// The operator's name.
    operator: String,
    /// The input: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Value>,
    /// In place of `input`: the input of an operator in the shape of the protocol
    /// (`{message, trigger, session, config, metadata}`). The answer then has `operator_output`.
    #[schema(value_type = Option<Object>)]
    operator_input: Option<Box<OperatorInput>>,
    /// Time for an attempt: `"20m"`.
    timeout: Option<String>,
    /// The time to wait for the end, at most and by default a minute; the run goes on after it.
    wait: Option<String>,
}

/// The answer to one of several.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SlotView {
    /// The result, if it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatch: Option<DispatchView>,
    /// The reason why it was not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// The answer to a dispatch, or to a list of them.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
enum DispatchAnswer {
    /// For a list: a slot for each, in their order.
    Many(Vec<SlotView>),
    /// For one.
    One(Box<DispatchView>),
}

/// Has an operator execute a task by itself: a run of one step. A list is executed in parallel;
/// what becomes of one changes nothing for the others.
#[utoipa::path(
    post, path = "/v1/dispatch", operation_id = "dispatch", tag = "operators",
    request_body = DispatchBody,
    responses(
        (status = 200, description = "One dispatch, or one slot for each of a list.", body = DispatchAnswer),
        (status = 404, description = "`not_found`: no such operator", body = ProblemBody),
    ),
)]
pub(super) async fn dispatch(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<DispatchBody>,
) -> Result<Response, Problem> {
    match posted.body {
        DispatchBody::One(one) => Ok(JsonBody(execute(&api, &caller, one).await?).into_response()),
        DispatchBody::Many(many) if many.len() > MOST => {
            Err(Problem::new(Code::InvalidBody, format!("at most {MOST} dispatches go together")))
        }
        DispatchBody::Many(many) => {
            let slots = many.into_iter().map(|one| async {
                match execute(&api, &caller, one).await {
                    Ok(view) => SlotView { dispatch: Some(view), problem: None },
                    Err(problem) => {
                        SlotView { dispatch: None, problem: Some(problem.body().clone()) }
                    }
                }
            });
            let slots: Vec<SlotView> =
                futures::stream::iter(slots).buffered(AT_ONCE).collect().await;
            Ok(JsonBody(slots).into_response())
        }
    }
}

async fn execute(api: &Api, caller: &Caller, one: OneBody) -> Result<DispatchView, Problem> {
    let invalid = |at: &str, detail: String| Problem::new(Code::InvalidBody, detail).at(at);
    let wait = params::wait(Some(one.wait.as_deref().unwrap_or(WAIT)))
        .map_err(|detail| invalid("$.wait", detail))?
        .unwrap_or_default();
    let timeout = match one.timeout.as_deref().map(parse_duration) {
        None => None,
        Some(Ok(ms)) => Some(DurationMs::from_millis(ms)),
        Some(Err(error)) => return Err(invalid("$.timeout", format!("failed to {error}"))),
    };
    let patience = api.patience(caller, wait);
    let input = match (one.input, one.operator_input) {
        (Some(_), Some(_)) => {
            let detail = "give `input` or `operator_input`, not both".to_owned();
            return Err(invalid("$.operator_input", detail));
        }
        (_, Some(input)) => DispatchInput::Operator(input),
        (input, None) => DispatchInput::Value(input.unwrap_or_default().into()),
    };
    Ok(api.engine.dispatches().dispatch(caller, &one.operator, input, timeout, patience).await?)
}
