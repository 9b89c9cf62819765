//! The tables `tokens` and `revocations`.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{in_row, text, text_or_null, uint, uint_or_null},
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
