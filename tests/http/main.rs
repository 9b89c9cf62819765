//! The HTTP API as a client sees it: a daemon in a process of its own, real requests.

#[path = "../support/mod.rs"]
mod support;

mod events;
mod flows;
mod refusals;
mod routes;
mod tokens;
mod upkeep;
mod webhook;
mod worker;
