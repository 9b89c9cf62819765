//! The views of the engine's data.

pub(crate) mod attempts;
pub(crate) mod context;
pub(crate) mod events;
pub(crate) mod host_events;
pub(crate) mod locals;
pub(crate) mod runs;
pub(crate) mod shell;
pub(crate) mod shown;
pub(crate) mod spent;
pub(crate) mod steps;
pub(crate) mod tasks;
pub(crate) mod waits;

pub(crate) use runs::{run, seats};
pub(crate) use shown::{artifact, breach};
pub(crate) use steps::step;
pub(crate) use tasks::{labels, task};
