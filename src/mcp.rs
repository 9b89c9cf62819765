//! The MCP server: tools for coding agents, over streamable HTTP and over stdio.
//!
//! Owns the table of tools, the schemas that clients see, and the form of results and errors. A tool
//! sends requests to the HTTP API with the credential of its client, so tokens, verbs, scopes, rates
//! and limits are those of the API, and nothing is decided or stored here. `host.rs` mounts
//! [`router`] behind the door beside the API; the command `moonswarm mcp` serves the same tools over
//! stdio. The operator of kind `mcp`, which is a client of other servers, is in the room `operator`.

mod answer;
mod desk;
mod direct;
mod docs;
mod follow;
mod form;
mod inside;
mod listing;
mod mount;
mod news;
mod notices;
mod observed;
mod offered;
mod operation;
mod pipe;
mod prompts;
mod published;
mod questions;
mod resources;
mod schema;
mod sessions;
mod tool;
mod tools;
mod transport;

pub use answer::Broken;
pub use mount::router;
pub use pipe::serve_stdio;
pub use transport::{Pieces, Reply, Request, Transport};
