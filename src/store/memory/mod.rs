//! A store in memory, for simulations: what is submitted waits until a driver commits it.
//!
//! Owns the same promises as the adapter on disk, with every moment between them in the driver's
//! hand: a batch is submitted, then durable, then acknowledged, and a crash may come between any
//! two. It loses what was not durable, and nothing else. Refuses to keep anything beyond the
//! process. The engine's simulation drives it; the conformance suite holds it to the traits.

mod batches;
mod reader;
mod tables;
mod upkeep;

pub use batches::{Commit, Memory};
