//! The tools for coding agents, used by a real MCP client over both transports.

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod client;
mod notices;
mod questions;
mod setup;
mod tools;
mod wire;
