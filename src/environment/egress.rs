//! Outgoing requests and their allowed targets.
//!
//! Enforces that a connection uses exactly the addresses that were checked: names are resolved
//! here, every address is checked, and the connection is made to these addresses. Refuses redirects
//! and proxies, which would bypass the check.

mod address;
mod client;

pub use address::is_public;
pub use client::{Egress, EgressError, http_client};
