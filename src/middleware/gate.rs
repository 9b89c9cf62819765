//! The guard that asks whether a principal may dispatch to an operator.

use async_trait::async_trait;

use super::{Dispatch, DispatchLayer, Dispatched, Next};
use crate::{
    protocol::{Failure, Json, failure::kind},
    token::{Grant, Need, Refusal, Verb},
};

/// Knows what a principal may do.
pub trait Permits: Send + Sync {
    /// Whether `principal` may have `operator` execute something.
    ///
    /// # Errors
    /// The gate's refusal.
    fn permits(&self, principal: &str, operator: &str) -> Result<(), Refusal>;
}

impl<F> Permits for F
where
    F: Fn(&str, &str) -> Result<(), Refusal> + Send + Sync,
{
    fn permits(&self, principal: &str, operator: &str) -> Result<(), Refusal> {
        self(principal, operator)
    }
}

/// One grant for every principal: an embedded host knows nobody but its owner.
impl Permits for Grant {
    fn permits(&self, _principal: &str, operator: &str) -> Result<(), Refusal> {
        self.check(Verb::Dispatch, &[Need::Operator(operator)])
    }
}

/// Refuses dispatches to operators that the run's principal may not use.
pub struct Gate<P>(P);

impl<P: Permits> Gate<P> {
    /// A gate that asks `permits`.
    pub fn new(permits: P) -> Self {
        Self(permits)
    }
}

#[async_trait]
impl<P: Permits> DispatchLayer for Gate<P> {
    fn name(&self) -> &'static str {
        "gate"
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        match self.0.permits(&dispatch.principal, &dispatch.operator) {
            Ok(()) => next.run(dispatch).await,
            Err(refusal) => Err(failure(&dispatch, &refusal)),
        }
    }
}

fn failure(dispatch: &Dispatch, refusal: &Refusal) -> Failure {
    let (principal, operator) = (&dispatch.principal, &dispatch.operator);
    let message = format!("{principal} may not dispatch to operator {operator}");
    let data = serde_json::json!({ "code": refusal.code(), "operator": operator });
    Failure::new(kind::REFUSED, message).with_data(Json::from(data))
}
