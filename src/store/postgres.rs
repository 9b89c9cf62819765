//! The adapter for a PostgreSQL database, which one living host owns at a time.
//!
//! Owns the connections, the tables in the schema `moonswarm`, the lease and the lanes that keep any
//! other host from writing, and the groups of commits, one at a time in each lane. Refuses a database
//! that another host has, a server that is too old, read-only or not PostgreSQL, and a newer format. One
//! file per table holds its reads, `write.rs` and `rows.rs` the writes. The host opens it. All others
//! use the traits of [`crate::store`].

mod address;
mod administered;
mod artifacts;
mod blobs;
mod blueprints;
mod charges;
mod check;
mod checks;
mod codes;
mod committer;
mod common;
mod copy;
mod cursor;
mod failed;
mod format;
mod group;
mod header;
mod hosts;
mod idempotency;
mod journal;
mod kept;
mod lane;
mod links;
mod load;
mod member;
mod open;
mod outbox;
mod owner;
mod place;
mod pool;
mod progress;
mod reader;
mod repeated;
mod retention;
mod rows;
mod run_list;
mod scopes;
mod seat;
mod server;
mod session;
mod sessions;
mod space;
mod standbys;
mod state;
mod state_text;
mod stats;
mod stats_fold;
mod status;
mod survey;
mod tasks;
mod tls;
mod tokens;
mod traces;
mod upgrade;
mod value;
mod values;
mod wire;
mod words;
mod write;
mod writers;

#[cfg(test)]
mod tests;

pub use address::DatabaseAddress;
pub use administered::{begin_after_restore, drain_node, fence_node, finalize, hold};
pub use copy::PostgresCopy;
pub use member::{Joining, Member};
pub use open::{Postgres, PostgresOptions};
pub use progress::forget as forget_progress;
pub use seat::{Seat, SeatOptions};
pub use standbys::Standbys;
pub use status::{ClusterStatus, cluster_status};
pub use survey::{Connections, DatabaseFinding, FindingLevel, Retained, survey};
