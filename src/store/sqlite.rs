//! The embedded adapter: one SQLite database in a data directory that one process owns.
//!
//! Owns the lock, the file, its format and migrations, the writer thread and the readers. Refuses a
//! directory with another owner, a newer format, and a file that is not a moonswarm database. One
//! file per table holds its writes and reads; `write.rs` and `reader.rs` only dispatch calls to
//! tables. The host opens it. All others use the traits of [`crate::store`].

mod artifacts;
mod backup;
mod blobs;
mod blueprints;
mod charges;
mod check;
mod committer;
mod connection;
mod copy;
mod erase;
mod error;
mod evidence;
mod format;
mod frames;
mod group;
mod header;
mod idempotency;
mod journal;
mod kept;
mod links;
mod load;
mod mark;
mod meta;
mod open;
mod outbox;
mod place;
mod pool;
mod portion;
mod prepared;
mod reader;
mod restore;
mod retention;
mod run_index;
mod run_list;
mod scopes;
mod sessions;
mod state;
mod state_text;
mod stats;
mod tasks;
mod tokens;
mod trial;
mod upgrade;
mod value;
mod write;
mod writer;

#[cfg(test)]
mod tests;

/// Changes the tables of a data directory behind the back of its store.
///
/// # Panics
/// When the statements fail.
#[cfg(test)]
pub fn tamper(directory: &std::path::Path, statements: &str) {
    let database = rusqlite::Connection::open(directory.join("moonswarm.db")).unwrap();
    database.execute_batch(statements).unwrap();
}

pub use check::directory as check_directory;
pub use connection::Synchronous;
pub use copy::SqliteCopy;
pub use erase::copies as copies_in;
pub use format::known as known_format;
pub use open::{Options, Sqlite};
pub use restore::{Restored, restore};
pub use trial::{TrialCopy, clear_trials};
pub use upgrade::survey;
