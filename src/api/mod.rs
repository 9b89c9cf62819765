//! The HTTP API: what the outside may ask of the engine, and how it is told.
//!
//! Owns the accept loop, the order of checks at the door (Host, Origin, bearer, verb, place, body), the
//! table of routes with the verb of each, the wire form of requests and the only mapping from
//! errors to HTTP statuses. Refuses what is too large, too slow, too often or unknown before the
//! engine sees it; scopes are the engine's to check. `host.rs` starts it; nothing else calls it,
//! and no other room knows axum.

mod artifacts;
mod blueprints;
mod body;
mod check;
mod codes;
mod config;
mod dispatch;
mod docs;
mod door;
mod error;
mod events;
mod fork;
mod health;
mod layers;
mod openapi;
mod operators;
mod origin;
mod params;
mod patient;
mod places;
mod query;
mod rate;
mod responses;
mod routes;
mod runs;
mod server;
mod session;
mod sessions;
mod signals;
mod state;
mod steps;
mod tasks;
mod tokens;
mod upkeep;
mod worker;

pub use config::{ApiConfig, Limits};
pub use openapi::openapi;
pub use server::serve;
