//! Starts workers for dispatched tasks.
//!
//! Owns [`SpawnerAdapter`], [`Spawners`], [`OperatorSpawner`] and [`Worker`], an attempt in progress that can be
//! awaited. Refuses to look at an operator's kind. The engine calls it as the innermost part of
//! every dispatch.

mod operator;
mod spawners;
mod worker;

pub use operator::OperatorSpawner;
pub use spawners::Spawners;
pub use worker::{SpawnerAdapter, Worker};
