//! The tables `tokens` and `revocations`.

use std::collections::HashSet;

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{in_row, int, limit, text, text_or_null, uint, uint_or_null},
};
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

/// Returns one token.
pub fn one(db: &Session, jti: &str) -> Result<Option<TokenRow>, Failed> {
    let row = db.one(select!("WHERE t.jti = $1"), &[&jti.as_bytes()])?;
    row.as_ref().map(read).transpose()
}

/// Returns all tokens, newest first.
pub fn list(db: &Session) -> Result<Vec<TokenRow>, Failed> {
    let rows = db.query(select!("ORDER BY t.created_ms DESC, t.id DESC"), &[])?;
    rows.iter().map(read).collect()
}

/// Returns the ids of all revoked tokens.
pub fn revoked(db: &Session) -> Result<HashSet<String>, Failed> {
    db.query("SELECT jti FROM revocations", &[])?.iter().map(|row| text(row, 0)).collect()
}

/// Returns tokens that expired before a time and that nothing needs: no stored token is made from
/// them, no open session has them, and no charge names them.
pub fn expired(db: &Session, before_ms: u64, most: usize) -> Result<Vec<String>, Failed> {
    let sql = "
        SELECT t.jti FROM tokens t WHERE t.expires_ms < $1
            AND NOT EXISTS (SELECT 1 FROM tokens c WHERE c.parent = t.jti)
            AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.jti = t.jti AND s.closed_ms IS NULL)
            AND NOT EXISTS (SELECT 1 FROM charges h WHERE h.jti = t.jti)
            AND NOT EXISTS (SELECT 1 FROM charged h WHERE h.jti = t.jti)
        LIMIT $2";
    let rows = db.query(sql, &[&int(before_ms), &limit(most)])?;
    rows.iter().map(|row| text(row, 0)).collect()
}

fn read(row: &Row) -> Result<TokenRow, Failed> {
    let whole = || {
        Ok(TokenRow {
            jti: text(row, 0)?,
            role: text(row, 1)?,
            claims: text(row, 2)?,
            parent: text_or_null(row, 3)?,
            created_ms: uint(row, 4)?,
            expires_ms: uint(row, 5)?,
            revoked_ms: uint_or_null(row, 6)?,
        })
    };
    whole().map_err(in_row(|| format!("token {}", text(row, 0).unwrap_or_default())))
}
