//! The command line: what a person or a script says to moonswarm.
//!
//! Owns the verbs, the HTTP client behind them, what is shown and the exit codes. Refuses to know
//! the engine: everything but `check`, `init`, `graph`, `test` and a few words about this machine goes over HTTP to
//! a daemon, which is the named one, the owner of the data directory, or one inside this process.
//! stdout is data, stderr is everything else. `main.rs` calls [`main`]; nothing else uses this room.

mod app;
mod beside;
mod changes;
mod client;
mod cluster;
mod command;
mod compile;
mod connect;
mod context;
mod database;
mod descriptors;
mod download;
mod exit;
mod files;
#[cfg(test)]
mod fixture;
mod follow;
mod form;
#[cfg(test)]
mod gallery;
mod mcp_clients;
mod people;
mod render;
mod report_worker;
mod resolve;
mod run_filters;
mod service;
mod skill;
mod sse;
mod terminal;
mod test_files;
mod values;
mod verb;

pub use app::main;
