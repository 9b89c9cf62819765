//! One transition of a run: what happens to it, and what follows from that.

pub(crate) mod attempts;
pub(crate) mod authority;
pub(crate) mod boundary;
pub(crate) mod budget;
pub(crate) mod compose;
pub(crate) mod effects;
pub(crate) mod ending;
pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod limits;
pub(crate) mod lineage;
pub(crate) mod loops;
pub(crate) mod passage;
pub(crate) mod pause;
pub(crate) mod pieces;
pub(crate) mod scoped;
pub(crate) mod settle;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod timers;
pub(crate) mod waiting;
pub(crate) mod weight;
