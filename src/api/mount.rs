//! Assembles the API for the server.

use std::sync::Arc;

use axum::{Router, handler::Handler, http::Method, middleware::from_fn_with_state, routing::get};

use super::{
    app::{Api, Parts},
    metrics, openapi, routes,
};
use crate::{
    door::{self, Door, KeyedRoutes, Rule, Shape, Who},
    engine::Engine,
    tasks::Tasks,
    testkit::Places,
};

/// The requests that run tests at the same time on a small machine. On a larger one they take half
/// of the cores, and the runs of the host have the others.
const LEAST_TESTS: usize = 2;

/// Returns the router of the API: every route behind `door`.
pub fn router(engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    routes::router(Api::new(Parts {
        engine,
        door,
        stopping: tasks.stopping().clone(),
        tasks: tasks.clone(),
        tests: Places::new((cores / 2).max(LEAST_TESTS)),
        openapi: openapi::text,
    }))
}

/// Returns the routes whose requests may have an `Idempotency-Key`.
pub fn keyed_routes() -> KeyedRoutes {
    let keyed = routes::table().filter(routes::Row::is_keyed).filter_map(|row| {
        let (method, path) = row.route();
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).ok()?;
        Some((method, path.to_owned()))
    });
    KeyedRoutes::new(keyed)
}

/// Returns the router of the same listener while a node stands by.
pub fn node_metrics_router(measures: metrics::NodeMeasures) -> Router {
    Router::new().route("/metrics", get(metrics::of_node)).with_state(measures)
}

/// Returns the router of a listener that serves the metrics and nothing else, without a token.
pub fn metrics_router(engine: Engine, door: Arc<Door>) -> Router {
    let rule = Rule { who: Who::Anybody, body: 0, page: None, shape: Shape::Problem };
    let behind = from_fn_with_state((engine.clone(), door, rule), door::pass);
    Router::new().route("/metrics", get(metrics::open.layer(behind))).with_state(engine)
}
