//! The door: the checks that every request passes before it reaches a handler.
//!
//! Owns the accept loop, the checks in their order (Host, Origin, bearer, rate, verb, place), the
//! places and rates of each credential, the error codes and the only mapping from errors to HTTP
//! statuses. Refuses requests that are too large, too slow, too frequent or unauthorized before the
//! engine sees them. Scopes are checked by the engine. The service behind the door (today the API)
//! provides a router with a rule for each route; `host.rs` mounts and serves it.

mod body;
mod config;
mod cors;
mod linger;
mod origin;
mod pass;
mod patient;
mod places;
mod problem;
mod rate;
mod server;

pub use config::{DoorConfig, Limits};
pub use pass::Door;
pub(crate) use pass::{Rule, Who, bearer, pass};
pub(crate) use places::{Place, account};
pub(crate) use problem::{
    FindingBody, MessageErrorBody, ModelErrorBody, Problem, ProblemBody, Shape,
};
pub use server::serve;

pub(crate) use crate::protocol::Code;
