//! Reading of whole tables in portions.

use tokio_postgres::Row;

use super::{failed::Failed, session::Session};

/// The number of bytes that are fetched at a time, about.
const BYTES: usize = 4 << 20;

/// Visits the rows of a statement without values, at most `most` of them at a time, and fewer where they are
/// large. `look` returns false to stop. Call it within a snapshot.
pub fn each(
    db: &Session,
    sql: &str,
    most: usize,
    mut look: impl FnMut(&Row) -> Result<bool, Failed>,
) -> Result<(), Failed> {
    // The same statement always has the same cursor, since that of `FETCH` is prepared once.
    let name = format!("c_{}", &blake3::hash(sql.as_bytes()).to_hex()[..16]);
    db.batch(&format!("DECLARE {name} NO SCROLL CURSOR FOR {sql}"))?;
    let mut portion = 1;
    'all: loop {
        let rows = db.query(&format!("FETCH {portion} FROM {name}"), &[])?;
        for row in &rows {
            if !look(row)? {
                break 'all;
            }
        }
        if rows.len() < portion {
            break;
        }
        let bytes = rows.iter().map(Row::raw_size_bytes).sum();
        portion = next_portion(portion, bytes, most);
    }
    db.batch(&format!("CLOSE {name}"))
}

/// Returns the number of rows to fetch after a portion with so many bytes: the next rows may be larger, so
/// it grows slowly and shrinks at once.
fn next_portion(portion: usize, bytes: usize, most: usize) -> usize {
    if bytes > BYTES {
        (portion * BYTES / bytes).next_power_of_two().div_euclid(2).max(1)
    } else if bytes < BYTES / 2 {
        (2 * portion).min(most)
    } else {
        portion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_grow_while_rows_are_small_and_shrink_where_they_are_large() {
        assert_eq!(next_portion(1, 10, 256), 2);
        assert_eq!(next_portion(256, 1 << 10, 256), 256);
        assert_eq!(next_portion(64, 3 << 20, 256), 64, "it is as large as it should be");
        assert_eq!(next_portion(256, 256 << 20, 256), 2);
        assert_eq!(next_portion(1, 256 << 20, 256), 1, "a row comes as a whole");
    }
}
