//! The state of the API's handlers.

use std::{ops::Deref, sync::Arc, time::Duration};

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use crate::{
    door::Door,
    engine::{Caller, Engine},
    tasks::Tasks,
    testkit::Places,
};

/// The state of every handler: its dependencies, which all requests share.
#[derive(Clone)]
pub(super) struct Api(Arc<Parts>);

impl Api {
    /// Returns the state with these dependencies.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Waits for the given time, but not beyond the stop of the host or the end of the caller's
    /// token.
    pub async fn patience(&self, caller: &Caller, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.stopping.cancelled() => {}
            _ = caller.token_over(&self.engine) => {}
        }
    }
}

impl Deref for Api {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The dependencies of the handlers.
pub(super) struct Parts {
    /// The engine, which does the work.
    pub engine: Engine,
    /// The checks before each request.
    pub door: Arc<Door>,
    /// Canceled when the host begins to stop; requests that wait then return at once.
    pub stopping: CancellationToken,
    /// Runs connections that were upgraded to a socket.
    pub tasks: Tasks,
    /// The places of requests that run tests of blueprints.
    pub tests: Arc<Places>,
    /// Returns the text of the OpenAPI document.
    pub openapi: fn() -> Bytes,
}
