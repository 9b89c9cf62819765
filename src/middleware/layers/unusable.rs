//! The layer in place of one that was accepted once and cannot be read any more.
//!
//! Nobody knows what that one would have refused or hidden, so this one refuses everything.

use async_trait::async_trait;
use serde_json::json;

use crate::{
    middleware::{
        About, Dispatch, DispatchLayer, Dispatched, ExecCall, ExecLayer, ExecNext, Next, Settled,
        Short, StoreCall, StoreLayer, StoreNext, Stored,
    },
    protocol::{Failure, Json, failure::kind},
};

/// Refuses everything.
#[derive(Debug, Clone)]
pub(in crate::middleware) struct Unusable {
    name: String,
    fault: String,
}

impl Unusable {
    /// Creates a layer in place of one with this fault.
    pub(in crate::middleware) fn new(name: &str, fault: &str) -> Self {
        Self { name: name.to_owned(), fault: fault.to_owned() }
    }

    fn refusal(&self) -> Failure {
        let Self { name, fault } = self;
        let message = format!("the layer {name} cannot be used, so everything is refused: {fault}");
        let data = json!({ "code": "unusable_layer", "layer": name, "fault": fault });
        Failure::new(kind::REFUSED, message).with_data(Json::from(data))
    }
}

#[async_trait]
impl DispatchLayer for Unusable {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, _dispatch: Dispatch, _next: Next<'_>) -> Result<Dispatched, Failure> {
        Err(self.refusal())
    }

    fn settle(&self, _about: &About, _input: &Json, outcome: Settled) -> Settled {
        let usage = match outcome {
            Ok(done) => done.usage,
            Err(short) => short.usage,
        };
        Err(Box::new(Short { usage, ..Short::from(self.refusal()) }))
    }
}

impl StoreLayer for Unusable {
    fn name(&self) -> &str {
        &self.name
    }

    fn store(&self, _call: StoreCall, _next: StoreNext<'_>) -> Stored {
        Err(self.refusal())
    }
}

#[async_trait]
impl ExecLayer for Unusable {
    fn name(&self) -> &str {
        &self.name
    }

    async fn exec(&self, _call: ExecCall, _next: ExecNext<'_>) -> Result<Dispatched, Failure> {
        Err(self.refusal())
    }
}
