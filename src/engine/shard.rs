//! The owner of runs: the loop that loads, advances, commits and performs.

pub(crate) mod away;
pub(crate) mod begin;
pub(crate) mod commit;
pub(crate) mod gauges;
pub(crate) mod interrupt;
pub(crate) mod lent;
pub(crate) mod load;
pub(crate) mod owner;
pub(crate) mod perform;
pub(crate) mod quarantine;
pub(crate) mod read;
pub(crate) mod room;
pub(crate) mod serve;
