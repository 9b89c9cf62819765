//! A run in memory, as data: what is open, what waits, what is on its way to the disk.

pub(crate) mod account;
pub(crate) mod due;
pub(crate) mod open;
pub(crate) mod readers;
pub(crate) mod resident;
