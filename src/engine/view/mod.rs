//! What the engine shows of itself.

pub(crate) mod shown;
pub(crate) mod tasks;

pub(crate) use shown::{artifact, breach, is_task, outcome_word, run, seats, step};
pub(crate) use tasks::{labels, task};
