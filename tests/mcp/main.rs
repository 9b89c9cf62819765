//! The tools for coding agents, used by a real MCP client over both transports.

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod client;
mod clients;
mod codex;
mod notices;
mod offered;
mod person;
mod questions;
mod sessions;
mod setup;
mod tools;
mod wire;
