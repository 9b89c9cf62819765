//! The table `blobs`: bytes by hash.

use super::{failed::Failed, session::Session, value::bytes};
use crate::store::rows::is_blob;

/// Returns stored bytes, after verifying their hash.
pub fn one(db: &Session, hash: &str) -> Result<Option<Vec<u8>>, Failed> {
    let row = db.one("SELECT data FROM blobs WHERE hash = $1", &[&hash.as_bytes()])?;
    let Some(row) = row else { return Ok(None) };
    let data = bytes(&row, 0)?;
    is_blob(hash, data)?;
    Ok(Some(data.to_vec()))
}
