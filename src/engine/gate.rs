//! The guard of every dispatch: a run reaches the operators that its grant covers.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    middleware::{Dispatch, DispatchLayer, Dispatched, Next},
    operator::Task,
    protocol::{Failure, failure::kind},
    token::{Grant, Need, Verb},
};

/// The data of a dispatch for the terminal and the gate.
pub(crate) struct Payload {
    pub(crate) task: Arc<Task>,
    pub(crate) grant: Arc<Grant>,
}

/// The guard of every dispatch: a run reaches the operators that its starter's token reaches.
pub(crate) struct RunGate;

#[async_trait]
impl DispatchLayer for RunGate {
    fn name(&self) -> &str {
        "gate"
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        if let Some(payload) = dispatch.payload.downcast_ref::<Payload>() {
            let need = Need::Operator(&dispatch.operator);
            payload
                .grant
                .check(Verb::Dispatch, &[need])
                .map_err(|refusal| Failure::new(kind::REFUSED, refusal.to_string()))?;
        }
        next.run(dispatch).await
    }
}
