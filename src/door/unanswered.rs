//! The answers to requests that no node has answered.

use axum::{
    http::Method,
    response::{IntoResponse as _, Response},
};

use super::{Code, problem::Problem};

/// Why a request has no answer of another node, as a word for the metrics.
#[derive(Clone, Copy)]
pub(super) struct Outcome(pub(super) &'static str);

/// The refusal of a request while no node drives.
pub(super) fn no_driver() -> Response {
    let detail = "no node of the cluster has the runs at the moment; nothing was done";
    named("no_driver", Problem::new(Code::NoDriver, detail).retry_after(2))
}

/// The refusal of a node that does not take work.
pub(super) fn not_ready(detail: &str) -> Response {
    Problem::new(Code::NotReady, detail).retry_after(1).into_response()
}

/// The refusal of a request while as many are forwarded as may be.
pub(super) fn overloaded() -> Response {
    let detail = "too many requests are being forwarded; ask again";
    named("overloaded", Problem::new(Code::Overloaded, detail).retry_after(1))
}

fn named(outcome: &'static str, problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.extensions_mut().insert(Outcome(outcome));
    response
}

/// The refusal of a request that no node answers any more. If a node may have received it, its outcome is
/// unknown, unless it only reads.
pub(super) fn given_up(method: &Method, was_sent: bool) -> Response {
    if was_sent && !method.is_safe() { unknown_outcome() } else { no_driver() }
}

/// The refusal of a request that may have had its effect.
pub(super) fn unknown_outcome() -> Response {
    let detail = "the connection to the node that has the runs was lost after the request was sent: look \
                  at the state before it is repeated, or send an Idempotency-Key";
    named("unknown_outcome", Problem::new(Code::UnknownOutcome, detail).retry_after(2))
}
