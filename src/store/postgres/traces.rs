//! Finds the rows of a target of erasure: looks at every row of every table, in one snapshot. What is
//! found is removed by the writer.

use tokio_postgres::{Row, types::Type};

use super::{
    cursor,
    failed::Failed,
    session::Session,
    stats_fold,
    value::{get, int, limit, uint},
};
use crate::store::{ErasureTarget, MOST_ERASED_RUNS, TracedRun, Traces, erase::Sought};

/// The number of rows that are read at a time.
const PORTION: usize = 128;
/// The number of files that are read at a time.
const FILES: usize = 4;

/// Finds everything of a target. Call it within a snapshot.
pub fn traces(db: &Session, target: &ErasureTarget) -> Result<Traces, Failed> {
    let mut sought = Sought::new(target);
    if sought.reads_contents() {
        let sql = "SELECT num, principal, status_text, error, waiting_on, used, tags FROM runs";
        each(db, sql, |row| {
            let texts = [1, 2, 3, 4, 5, 6].map(|column| text(row, column));
            sought.header(uint(row, 0)?, texts[0], &texts);
            Ok(())
        })?;
    }
    if sought.follows() {
        each(db, "SELECT num, parent_run FROM runs WHERE parent_run IS NOT NULL", |row| {
            sought.called(uint(row, 0)?, uint(row, 1)?);
            Ok(())
        })?;
        each(db, "SELECT run, entry FROM journal", |row| {
            sought.entry(uint(row, 0)?, bytes(row, 1));
            Ok(())
        })?;
        sought.follow(|run| {
            let row = db.one("SELECT created_ms FROM runs WHERE num = $1", &[&int(run)])?;
            row.map(|row| uint(&row, 0)).transpose()
        })?;
    }
    if sought.reads_contents() {
        parts(db, &mut sought)?;
    }
    let runs: Vec<i64> = sought.runs().map(int).collect();
    // One more shows that there are more.
    for row in db.query(RUNS, &[&runs, &limit(MOST_ERASED_RUNS + 1)])? {
        sought.run(TracedRun {
            num: uint(&row, 0)?,
            created_ms: uint(&row, 1)?,
            ended: get(&row, 2)?,
            entries: uint(&row, 3)?,
            bytes: uint(&row, 4)?,
            files: uint(&row, 5)?,
        });
    }
    rows(db, &mut sought)?;
    Ok(sought.into_traces())
}

/// The newest first: a later look finds those that they descend from, and through these the rest.
const RUNS: &str = "
    SELECT num, created_ms, ended_ms IS NOT NULL, seq, bytes,
           (SELECT count(*) FROM artifacts WHERE run = num)
    FROM runs WHERE num = ANY ($1) ORDER BY num DESC LIMIT $2";

/// Looks at what belongs to runs.
fn parts(db: &Session, sought: &mut Sought) -> Result<(), Failed> {
    // The run, and all columns that can have a text.
    for (sql, portion) in [
        ("SELECT run, entry FROM journal", PORTION),
        ("SELECT run, prompt, summary, question FROM tasks", PORTION),
        ("SELECT run, name, payload FROM outbox", PORTION),
        ("SELECT run, body FROM evidence", PORTION),
        ("SELECT run, params FROM frames", PORTION),
        ("SELECT run, answer FROM state_receipts", PORTION),
        ("SELECT run, name FROM artifacts", PORTION),
        ("SELECT a.run, b.data FROM blobs b JOIN artifacts a ON a.hash = b.hash", FILES),
    ] {
        cursor::each(db, sql, portion, |row| {
            let run = uint(row, 0)?;
            (1..row.len()).for_each(|column| sought.part(run, bytes(row, column)));
            Ok(true)
        })?;
    }
    Ok(())
}

/// Looks at the rows outside of runs.
fn rows(db: &Session, sought: &mut Sought) -> Result<(), Failed> {
    each(db, "SELECT scope, key, value FROM state", |row| {
        sought.state(text(row, 0), text(row, 1), text(row, 2));
        Ok(())
    })?;
    each(db, "SELECT scope, from_key, relation, to_key, metadata FROM state_links", |row| {
        sought.link([0, 1, 2, 3].map(|column| text(row, column)), text(row, 4));
        Ok(())
    })?;
    each(db, "SELECT layer, key, value FROM kept", |row| {
        sought.kept(text(row, 0), text(row, 1), text(row, 2));
        Ok(())
    })?;
    each(db, "SELECT principal, route, key, answer FROM idempotency", |row| {
        sought.answer([0, 1, 2].map(|column| text(row, column)), text(row, 3));
        Ok(())
    })?;
    each(db, "SELECT id, principal, operator, reason FROM sessions", |row| {
        sought.session(text(row, 0), text(row, 1), &[text(row, 2), text(row, 3)]);
        Ok(())
    })?;
    each(db, "SELECT jti, claims FROM tokens", |row| {
        sought.token(text(row, 0), text(row, 1));
        Ok(())
    })?;
    for name in stats_fold::names(db)? {
        sought.sums(&name);
    }
    each(db, "SELECT num, hash FROM runs", |row| {
        sought.source_of(uint(row, 0)?, text(row, 1));
        Ok(())
    })?;
    let sql = "
        SELECT hash, name, bundle,
               publisher IS NOT NULL OR hash IN (SELECT hash FROM blueprint_names)
        FROM blueprints";
    each(db, sql, |row| {
        sought.blueprint((text(row, 0), text(row, 1)), bytes(row, 2), get(row, 3)?);
        Ok(())
    })?;
    for (place, sql) in
        [("host", "SELECT key, value FROM meta"), ("audit", "SELECT line FROM audit")]
    {
        each(db, sql, |row| {
            let parts: Vec<&[u8]> = (0..row.len()).map(|column| bytes(row, column)).collect();
            sought.stays(place, &parts);
            Ok(())
        })?;
    }
    Ok(())
}

fn each(
    db: &Session,
    sql: &str,
    mut look: impl FnMut(&Row) -> Result<(), Failed>,
) -> Result<(), Failed> {
    cursor::each(db, sql, PORTION, |row| look(row).map(|()| true))
}

/// Returns a text of a row; empty for what is none, or is no UTF-8.
fn text(row: &Row, column: usize) -> &str {
    std::str::from_utf8(bytes(row, column)).unwrap_or_default()
}

/// Returns the bytes of a column; empty for null and for what has none.
fn bytes(row: &Row, column: usize) -> &[u8] {
    match row.columns()[column].type_() {
        &Type::BYTEA => row.get::<_, Option<&[u8]>>(column).unwrap_or_default(),
        _ => &[],
    }
}
