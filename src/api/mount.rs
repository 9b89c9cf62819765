//! Assembles the API for the server.

use std::sync::Arc;

use axum::Router;

use super::{app::Api, openapi, routes};
use crate::{door::Door, engine::Engine, tasks::Tasks};

/// Returns the router of the API: every route behind `door`.
pub fn router(engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    routes::router(Api {
        engine,
        door,
        stopping: tasks.stopping().clone(),
        tasks: tasks.clone(),
        openapi: openapi::text,
    })
}
