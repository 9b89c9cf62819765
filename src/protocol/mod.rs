//! The seed vocabulary: plain data and object-safe traits.
//!
//! Owns what every other room speaks in: ids, content, effects, failures, the Operator trait and
//! the words of a multi-step chain. Refuses tokio, IO, Lua and SQL. Everybody uses it.

pub mod failure;
mod json;
mod run_id;
pub mod step;

pub use failure::Failure;
pub use json::Json;
pub use run_id::{ArtifactId, IdError, RunId, TaskId};
pub use step::{StepKind, StepState};
