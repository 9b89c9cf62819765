//! The real program over disks that are full, that fail and that lie, beside neighbours that hold its
//! locks, with workers and clients that go away at the worst moment.

#[path = "../support/mod.rs"]
mod support;

mod disk;
mod erase;
mod guards;
mod lease;
mod migration;
mod neighbours;
mod retry;
mod sessions;
mod shim;
mod state;
