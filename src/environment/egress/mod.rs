//! Requests that leave the host: where they may go.
//!
//! Owns the rule that an address is checked and then connected to, with nothing in between: names
//! are resolved here, every address is checked, and the connection is made to those very
//! addresses. Refuses redirects and proxies, which would go round the check.

mod address;
mod client;

pub use address::is_public;
pub use client::{Egress, EgressError, http_client};
