//! The operator that calls a tool of an MCP server.
//!
//! Owns the connection to one server, over the pipes of a child process or streamable HTTP, which
//! all tasks of the operator share; the list of its tools; and the meaning of a call's result. The
//! connection is opened on first use, and again after it failed. Refuses arguments that violate the
//! schema of the tool before any call. A call in progress when the host dies is an interrupted
//! attempt, as with all work inside the host.

mod call;
mod server;
mod settings;
mod stdio;

#[cfg(test)]
mod tests;

pub(super) use settings::McpSettings;
