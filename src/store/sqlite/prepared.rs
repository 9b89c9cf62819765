//! Statements that are executed for many batches of a group.

use rusqlite::{CachedStatement, Connection};

/// A statement that is looked up in the connection's cache only once: each look-up hashes the whole
/// text twice, and copies it.
pub struct Prepared<'c> {
    conn: &'c Connection,
    sql: &'static str,
    statement: Option<CachedStatement<'c>>,
}

impl<'c> Prepared<'c> {
    /// Creates one that is prepared at its first use.
    pub fn new(conn: &'c Connection, sql: &'static str) -> Self {
        Self { conn, sql, statement: None }
    }

    /// Returns the statement.
    ///
    /// # Errors
    /// Fails when it cannot be prepared.
    pub fn get(&mut self) -> rusqlite::Result<&mut CachedStatement<'c>> {
        if self.statement.is_none() {
            self.statement = Some(self.conn.prepare_cached(self.sql)?);
        }
        Ok(self.statement.as_mut().expect("it was prepared just now"))
    }
}
