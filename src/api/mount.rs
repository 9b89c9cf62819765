//! Assembles the API for the server.

use std::sync::Arc;

use axum::Router;

use super::{app::Api, openapi, routes};
use crate::{door::Door, engine::Engine, tasks::Tasks, testkit::Places};

/// The requests that run tests at the same time on a small machine. On a larger one they take half
/// of the cores, and the runs of the host have the others.
const LEAST_TESTS: usize = 2;

/// Returns the router of the API: every route behind `door`.
pub fn router(engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    routes::router(Api {
        engine,
        door,
        stopping: tasks.stopping().clone(),
        tasks: tasks.clone(),
        tests: Places::new((cores / 2).max(LEAST_TESTS)),
        openapi: openapi::text,
    })
}
