//! The HTTP API of the engine.
//!
//! Owns the table of routes with the verb of each, and the wire form of requests and responses. The
//! door checks the caller and the rate before a handler runs; the engine checks scopes. `host.rs`
//! mounts the [`router`] behind the door; nothing else calls it.

mod app;
mod artifacts;
mod blueprints;
mod body;
mod bulk;
mod check;
mod described;
mod dispatch;
mod docs;
mod erase;
mod events;
mod feed;
mod fork;
mod health;
mod host;
mod layers;
mod metrics;
mod mount;
mod nodes;
mod openapi;
mod operators;
mod params;
mod query;
mod queues;
mod rerun;
mod responses;
mod routes;
mod run_diff;
mod run_list;
mod runs;
mod session;
mod sessions;
mod signals;
mod state;
mod stats;
mod steps;
mod tasks;
mod testing;
mod tokens;
mod triggers;
mod upkeep;
mod worker;

pub use metrics::NodeMeasures;
pub use mount::{keyed_routes, metrics_router, node_metrics_router, router};
pub use openapi::openapi;
