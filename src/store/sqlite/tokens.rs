//! The tables `tokens` and `revocations`.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::value::{int, limit, uint, uint_or_null};
use crate::store::TokenRow;

/// The columns, in the order of [`read`].
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT t.jti, t.role, t.claims, t.parent, t.created_ms, t.expires_ms, r.at_ms \
             FROM tokens t LEFT JOIN revocations r ON r.jti = t.jti ",
            $rest
        )
    };
}

/// Stores a token. An existing revocation stays.
pub fn put(conn: &Connection, token: &TokenRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO tokens (jti, role, claims, parent, created_ms, expires_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (jti) DO UPDATE SET role = excluded.role, claims = excluded.claims,
             parent = excluded.parent, created_ms = excluded.created_ms,
             expires_ms = excluded.expires_ms",
    )?
    .execute(params![
        token.jti,
        token.role,
        token.claims,
        token.parent,
        int(token.created_ms),
        int(token.expires_ms),
    ])?;
    token.revoked_ms.map_or(Ok(()), |at_ms| revoke(conn, &token.jti, at_ms))
}

/// Revokes a token. Only the first call has an effect.
pub fn revoke(conn: &Connection, jti: &str, at_ms: u64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO revocations (jti, at_ms) VALUES (?1, ?2) ON CONFLICT (jti) DO NOTHING",
    )?
    .execute(params![jti, int(at_ms)])
    .map(drop)
}

/// Returns tokens that expired before a time and that nothing needs: no stored token is made from
/// them, no open session has them, and no charge names them.
pub fn expired(conn: &Connection, before_ms: u64, most: usize) -> rusqlite::Result<Vec<String>> {
    conn.prepare_cached(
        "SELECT jti FROM tokens WHERE expires_ms < ?1
             AND jti NOT IN (SELECT parent FROM tokens WHERE parent IS NOT NULL)
             AND jti NOT IN (SELECT jti FROM sessions WHERE closed_ms IS NULL)
             AND jti NOT IN (SELECT jti FROM charges)
             AND jti NOT IN (SELECT jti FROM charged)
         LIMIT ?2",
    )?
    .query_map(params![int(before_ms), limit(most)], |row| row.get(0))?
    .collect()
}

/// Returns the ids of all revoked tokens.
pub fn revoked(conn: &Connection) -> rusqlite::Result<HashSet<String>> {
    conn.prepare("SELECT jti FROM revocations")?.query_map([], |row| row.get(0))?.collect()
}

/// Returns one token.
pub fn one(conn: &Connection, jti: &str) -> rusqlite::Result<Option<TokenRow>> {
    conn.prepare_cached(select!("WHERE t.jti = ?1"))?.query_row([jti], read).optional()
}

/// Returns all tokens, newest first.
pub fn list(conn: &Connection) -> rusqlite::Result<Vec<TokenRow>> {
    conn.prepare_cached(select!("ORDER BY t.created_ms DESC, t.rowid DESC"))?
        .query_map([], read)?
        .collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    Ok(TokenRow {
        jti: row.get(0)?,
        role: row.get(1)?,
        claims: row.get(2)?,
        parent: row.get(3)?,
        created_ms: uint(row, 4)?,
        expires_ms: uint(row, 5)?,
        revoked_ms: uint_or_null(row, 6)?,
    })
}
