//! The HTTP API as a client sees it: a daemon in a process of its own, real requests.

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod blueprints;
mod composites;
mod events;
mod feed;
mod flows;
mod host_events;
mod inbox;
mod libraries;
mod locals;
mod metrics;
mod middleware;
mod models;
mod otlp;
mod people;
mod proxies;
mod refusals;
mod routes;
mod runs;
mod socket;
mod state;
mod stats;
mod steps;
mod task_webhook;
mod testing;
mod tls;
mod tokens;
mod triggers;
mod upkeep;
mod webhook;
mod worker;
