//! The state of the API's handlers.

use std::sync::Arc;

use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use crate::{door::Door, engine::Engine, tasks::Tasks};

/// Everything that a handler has at hand.
#[derive(Clone)]
pub(super) struct Api {
    /// The engine, which does the work.
    pub engine: Engine,
    /// The checks before it.
    pub door: Arc<Door>,
    /// Canceled when the host begins to stop; what waits then answers at once.
    pub stopping: CancellationToken,
    /// Where a connection that became a socket goes on.
    pub tasks: Tasks,
    /// Makes the text of the OpenAPI document.
    pub openapi: fn() -> Bytes,
}
