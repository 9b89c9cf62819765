//! A Lua-scriptable swarm host.

#![deny(clippy::disallowed_methods, clippy::unwrap_used)]

pub mod protocol;

pub mod journal;

pub mod flow;

pub mod token;

pub mod blueprint;

pub mod lua;

pub mod middleware;

pub mod store;

pub mod operator;

pub mod spawner;

pub mod engine;

pub mod api;

pub mod cli;

pub mod clock;
pub mod config;
pub mod host;
pub mod tasks;
pub mod telemetry;
