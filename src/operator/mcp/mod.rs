//! The operator that calls a tool of an MCP server.
//!
//! Owns the connection to one server, over the pipes of a child process or streamable HTTP, which
//! all tasks of the operator share; the list of its tools; and what a call's result means. The
//! connection is made when it is first needed and again after it broke off. Refuses arguments that
//! break the tool's schema before anybody is asked. A call that was under way when the host died is
//! an interrupted attempt, as with any work that lives in the host.

mod call;
mod server;
mod settings;
mod stdio;

#[cfg(test)]
mod tests;

pub(super) use settings::McpSettings;
