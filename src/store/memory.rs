//! A store in memory, for simulations: batches wait until a driver commits them.
//!
//! Gives the same guarantees as the adapter on disk, and lets the driver control every moment: a
//! batch is submitted, then durable, then acknowledged, and a crash may come between any two. A
//! crash loses what was not durable, and nothing else. Keeps nothing beyond the process. The
//! engine's simulation drives it, and the conformance suite tests it.

mod batches;
mod erase;
mod expiring;
mod reader;
mod tables;
mod upkeep;

pub use batches::{Commit, Memory};
