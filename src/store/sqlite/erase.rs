//! Erasing: finds the rows of a target, removes them, and writes the file anew, so that no byte of
//! them is left in free space.
//!
//! Looks at every row of every table, beside the writer. Copies of the database are read by their
//! own tables, whatever their format.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params, types::ValueRef};

use super::{
    connection::DATABASE,
    error::database,
    retention, state, stats,
    value::{int, uint},
};
use crate::store::{
    ErasureTarget, StoreError, Trace, TracedRun, Traces, TracesInCopy, erase::Sought,
};

/// The first bytes of a database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Finds everything of a target.
pub fn traces(conn: &Connection, target: &ErasureTarget) -> rusqlite::Result<Traces> {
    // One snapshot for all tables.
    let tx = conn.unchecked_transaction()?;
    let mut sought = Sought::new(target);
    if sought.reads_contents() {
        each(
            &tx,
            "SELECT num, principal, status_text, error, waiting_on, used, tags FROM runs",
            |row| {
                let texts = [
                    text(row, 1)?,
                    text(row, 2)?,
                    text(row, 3)?,
                    text(row, 4)?,
                    text(row, 5)?,
                    text(row, 6)?,
                ];
                sought.header(uint(row, 0)?, texts[0], &texts);
                Ok(())
            },
        )?;
    }
    if sought.follows() {
        each(&tx, "SELECT num, parent_run FROM runs WHERE parent_run IS NOT NULL", |row| {
            sought.called(uint(row, 0)?, uint(row, 1)?);
            Ok(())
        })?;
        each(&tx, "SELECT run, entry FROM journal", |row| {
            sought.entry(uint(row, 0)?, bytes(row.get_ref(1)?));
            Ok(())
        })?;
        sought.follow(|run| {
            tx.prepare_cached("SELECT created_ms FROM runs WHERE num = ?1")?
                .query_row([int(run)], |row| uint(row, 0))
                .optional()
        })?;
    }
    if sought.reads_contents() {
        parts(&tx, &mut sought)?;
    }
    let runs: Vec<u64> = sought.runs().collect();
    for run in runs {
        let mut found = tx.prepare_cached(
            "SELECT num, created_ms, ended_ms IS NOT NULL, seq, bytes,
                 (SELECT count(*) FROM artifacts WHERE run = num)
             FROM runs WHERE num = ?1",
        )?;
        let mut found = found.query([int(run)])?;
        if let Some(row) = found.next()? {
            sought.run(TracedRun {
                num: uint(row, 0)?,
                created_ms: uint(row, 1)?,
                ended: row.get(2)?,
                entries: uint(row, 3)?,
                bytes: uint(row, 4)?,
                files: uint(row, 5)?,
            });
        }
    }
    rows(&tx, &mut sought)?;
    Ok(sought.into_traces())
}

/// Looks at what belongs to runs.
fn parts(conn: &Connection, sought: &mut Sought) -> rusqlite::Result<()> {
    // The run, and all columns that can have a text.
    for sql in [
        "SELECT run, entry FROM journal",
        "SELECT run, prompt, summary, question FROM tasks",
        "SELECT run, name, payload FROM outbox",
        "SELECT run, body FROM evidence",
        "SELECT run, params FROM frames",
        "SELECT run, answer FROM state_receipts",
        "SELECT run, name FROM artifacts",
        "SELECT a.run, b.data FROM blobs b JOIN artifacts a ON a.hash = b.hash",
    ] {
        each(conn, sql, |row| {
            let run = uint(row, 0)?;
            for column in 1..row.as_ref().column_count() {
                sought.part(run, bytes(row.get_ref(column)?));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Looks at the rows outside of runs.
fn rows(conn: &Connection, sought: &mut Sought) -> rusqlite::Result<()> {
    each(conn, "SELECT scope, key, value FROM state", |row| {
        sought.state(text(row, 0)?, text(row, 1)?, text(row, 2)?);
        Ok(())
    })?;
    each(conn, "SELECT scope, from_key, relation, to_key, metadata FROM state_links", |row| {
        let link = [text(row, 0)?, text(row, 1)?, text(row, 2)?, text(row, 3)?];
        sought.link(link, text(row, 4)?);
        Ok(())
    })?;
    each(conn, "SELECT layer, key, value FROM kept", |row| {
        sought.kept(text(row, 0)?, text(row, 1)?, text(row, 2)?);
        Ok(())
    })?;
    each(conn, "SELECT principal, route, key, answer FROM idempotency", |row| {
        sought.answer([text(row, 0)?, text(row, 1)?, text(row, 2)?], text(row, 3)?);
        Ok(())
    })?;
    each(conn, "SELECT id, principal, operator, reason FROM sessions", |row| {
        sought.session(text(row, 0)?, text(row, 1)?, &[text(row, 2)?, text(row, 3)?]);
        Ok(())
    })?;
    each(conn, "SELECT jti, claims FROM tokens", |row| {
        sought.token(text(row, 0)?, text(row, 1)?);
        Ok(())
    })?;
    for name in stats::names(conn)? {
        sought.sums(&name);
    }
    each(conn, "SELECT num, hash FROM runs", |row| {
        sought.source_of(uint(row, 0)?, text(row, 1)?);
        Ok(())
    })?;
    each(
        conn,
        "SELECT hash, name, bundle,
             publisher IS NOT NULL OR hash IN (SELECT hash FROM blueprint_names)
         FROM blueprints",
        |row| {
            let (name, bundle) = (text(row, 1)?, bytes(row.get_ref(2)?));
            sought.blueprint((text(row, 0)?, name), bundle, row.get(3)?);
            Ok(())
        },
    )?;
    for (place, sql) in
        [("host", "SELECT key, value FROM meta"), ("audit", "SELECT line FROM audit")]
    {
        each(conn, sql, |row| {
            let parts = (0..row.as_ref().column_count()).map(|it| row.get_ref(it).map(bytes));
            sought.stays(place, &parts.collect::<rusqlite::Result<Vec<_>>>()?);
            Ok(())
        })?;
    }
    Ok(())
}

/// Removes a row.
pub fn apply(conn: &Connection, trace: &Trace) -> rusqlite::Result<()> {
    match trace {
        Trace::Run(run) => {
            retention::delete_run(conn, *run)?;
            conn.prepare_cached("DELETE FROM frames WHERE run = ?1")?.execute([int(*run)])?;
            stats::forget_run(conn, *run)
        }
        Trace::State { scope, key } => state::delete(conn, scope, key),
        Trace::Link { scope, from, relation, to } => {
            super::links::delete(conn, scope, (from, relation, to))
        }
        Trace::Kept { layer, key } => super::kept::remove(conn, layer, key),
        Trace::Answer { principal, route, key } => conn
            .prepare_cached(
                "DELETE FROM idempotency WHERE principal = ?1 AND route = ?2 AND key = ?3",
            )?
            .execute([principal, route, key])
            .map(drop),
        Trace::Session(id) => {
            conn.prepare_cached("DELETE FROM frames WHERE session = ?1")?.execute([id])?;
            conn.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id]).map(drop)
        }
        Trace::Token(jti) => {
            conn.prepare_cached("DELETE FROM tokens WHERE jti = ?1")?.execute([jti]).map(drop)
        }
        Trace::Sums(name) => stats::forget_name(conn, name),
        Trace::Blueprint { name, hash } => super::blueprints::erase(conn, name, hash),
    }
}

/// Writes the whole database anew, so that free space holds nothing that was deleted, and empties
/// the log as well. Needs about the size of the database twice, beside it.
///
/// The indexes of words come first: they keep the words of what was deleted until their parts are
/// merged.
pub fn rewrite(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "INSERT INTO state_text (state_text) VALUES ('optimize');
         INSERT INTO run_text (run_text) VALUES ('optimize');
         PRAGMA temp_store = FILE; VACUUM; PRAGMA temp_store = MEMORY;",
    )
}

/// Returns what the other databases in a data directory hold of a target and of erased runs: copies
/// from before a migration, unfinished copies, and whatever somebody put there.
pub fn copies(
    dir: &Path,
    target: &ErasureTarget,
    runs: &[TracedRun],
) -> Result<Vec<TracesInCopy>, StoreError> {
    let mut found = Vec::new();
    for path in databases(dir).map_err(super::error::file("read", dir))? {
        let bytes = path.metadata().map_or(0, |meta| meta.len());
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut copy = TracesInCopy { file, bytes, runs: 0, rows: 0, problem: None };
        if let Err(error) = held(&path, target, runs, &mut copy) {
            copy.problem = Some(database("read")(error).to_string());
        }
        found.push(copy);
    }
    Ok(found)
}

/// Returns the databases of a directory, without the one in use, sorted.
fn databases(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let mut begin = [0; MAGIC.len()];
        let is_database = path.is_file()
            && !path.ends_with(DATABASE)
            && File::open(&path).and_then(|mut file| file.read_exact(&mut begin)).is_ok()
            && begin == MAGIC;
        found.extend(is_database.then_some(path));
    }
    found.sort();
    Ok(found)
}

fn held(
    path: &Path,
    target: &ErasureTarget,
    runs: &[TracedRun],
    copy: &mut TracesInCopy,
) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    for run in runs {
        let is_there = conn
            .prepare_cached("SELECT 1 FROM runs WHERE num = ?1 AND created_ms = ?2")?
            .exists(params![int(run.num), int(run.created_ms)])?;
        copy.runs += u64::from(is_there);
    }
    let sought = Sought::new(target);
    if !sought.reads_contents() {
        return Ok(());
    }
    let mut tables = conn.prepare(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'
         AND name NOT LIKE 'sqlite_%'",
    )?;
    let tables = tables.query_map([], |row| row.get::<_, String>(0))?;
    for table in tables.collect::<rusqlite::Result<Vec<_>>>()? {
        each(&conn, &format!("SELECT * FROM \"{}\"", table.replace('"', "\"\"")), |row| {
            for column in 0..row.as_ref().column_count() {
                if sought.touches(bytes(row.get_ref(column)?)) {
                    copy.rows += 1;
                    break;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn each(
    conn: &Connection,
    sql: &str,
    mut look: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        look(row)?;
    }
    Ok(())
}

/// Returns a text of a row; empty for what is none, or is no UTF-8.
fn text<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<&'r str> {
    Ok(std::str::from_utf8(bytes(row.get_ref(column)?)).unwrap_or_default())
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    }
}
