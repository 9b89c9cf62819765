//! Reading of whole tables in portions.

use tokio_postgres::Row;

use super::{failed::Failed, session::Session};

/// Visits the rows of a statement without values, `portion` of them at a time. `look` returns false to
/// stop. Call it within a snapshot.
pub fn each(
    db: &Session,
    sql: &str,
    portion: usize,
    mut look: impl FnMut(&Row) -> Result<bool, Failed>,
) -> Result<(), Failed> {
    // The same statement always has the same cursor, since that of `FETCH` is prepared once.
    let name = format!("c_{}", &blake3::hash(sql.as_bytes()).to_hex()[..16]);
    db.batch(&format!("DECLARE {name} NO SCROLL CURSOR FOR {sql}"))?;
    let fetch = format!("FETCH {portion} FROM {name}");
    'all: loop {
        let rows = db.query(&fetch, &[])?;
        for row in &rows {
            if !look(row)? {
                break 'all;
            }
        }
        if rows.len() < portion {
            break;
        }
    }
    db.batch(&format!("CLOSE {name}"))
}
