//! The door: what every request passes before it reaches a handler.
//!
//! Owns the accept loop, the checks in their order (Host, Origin, bearer, rate, verb, place), the
//! places and rates of each credential, the codes of refusals and the only mapping from errors to
//! HTTP statuses. Refuses what is too large, too slow, too often or unknown before the engine sees
//! it; scopes are the engine's to check. What stands behind the door (the API today) brings a
//! router whose routes each have a rule; `host.rs` mounts it and serves it.

pub(crate) mod codes;
mod config;
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
pub(crate) use places::Place;
pub(crate) use problem::{FindingBody, ModelErrorBody, Problem, ProblemBody};
pub use server::serve;
