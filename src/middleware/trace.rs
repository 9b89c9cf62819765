//! The outermost layer of every stack: a span around each dispatch.

use async_trait::async_trait;
use tracing::{Instrument, field, level_filters::LevelFilter};

use super::{
    DispatchObserver, Dispatched, ExecCall, ExecObserver, StoreCall, StoreObserver, Stored,
    Watched, exec,
};
use crate::protocol::Failure;

/// Opens a span around each dispatch, with its parties and outcome but never its content.
///
/// The span is at debug level: recording its fields takes longer than the rest of an inline step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracing;

#[async_trait]
impl DispatchObserver for Tracing {
    fn name(&self) -> &'static str {
        "tracing"
    }

    fn is_on(&self) -> bool {
        LevelFilter::current() >= LevelFilter::DEBUG
    }

    async fn observe(&self, watched: Watched<'_>) -> Result<(), Failure> {
        let dispatch = watched.dispatch();
        let span = tracing::debug_span!(
            "dispatch",
            run = %dispatch.run,
            task = %dispatch.task,
            attempt = dispatch.attempt,
            agent = &*dispatch.agent,
            operator = &*dispatch.operator,
            outcome = field::Empty,
        );
        if span.is_disabled() {
            watched.run().await;
            return Ok(());
        }
        let outcome = watched.run().instrument(span.clone()).await;
        span.record("outcome", word(outcome));
        span.in_scope(|| tracing::debug!("dispatched"));
        Ok(())
    }
}

impl StoreObserver for Tracing {
    fn name(&self) -> &str {
        "tracing"
    }

    fn stored(&self, call: &StoreCall, outcome: &Stored) {
        let (op, outcome) = (call.op.as_str(), exec::word(outcome));
        tracing::debug!(op, scope = call.scope, key = call.key, outcome, "stored");
    }
}

impl ExecObserver for Tracing {
    fn name(&self) -> &str {
        "tracing"
    }

    fn starting(&self, call: &ExecCall) {
        tracing::debug!(task = %call.task, program = call.program, "starting a program");
    }

    fn ended(&self, call: &ExecCall, outcome: &Result<Dispatched, Failure>) {
        let outcome = exec::word(outcome);
        tracing::debug!(task = %call.task, program = call.program, outcome, "a program ended");
    }
}

/// Returns the kind of a failure and not its message, which may quote a worker.
fn word(outcome: &Result<Dispatched, Failure>) -> &str {
    match outcome {
        Ok(Dispatched::Done(_)) => "done",
        Ok(Dispatched::Parked) => "parked",
        Ok(Dispatched::Short(short)) => &short.failure.kind,
        Err(failure) => &failure.kind,
    }
}
