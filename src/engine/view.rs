//! The views of the engine's data.

pub(crate) mod context;
pub(crate) mod events;
pub(crate) mod shown;
pub(crate) mod spent;
pub(crate) mod tasks;
pub(crate) mod waits;

pub(crate) use shown::{artifact, breach, run, seats, step};
pub(crate) use tasks::{labels, task};
