//! Checks of the database: of its pages only, or of all its content.
//!
//! A full check reads everything once, one row or one history at a time, beside the writer. Each
//! part has its own transactions, so that checkpoints can run meanwhile.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row, types::ValueRef};

use super::{
    blueprints,
    connection::{DATABASE, reader},
    error::{database, in_row},
    format, header, journal, state, stats,
    value::{int, json_or_null, uint},
};
use crate::{
    journal::{Chain, RunState},
    protocol::RunId,
    store::{Header, StoreError, Tell, check::Findings, lock::Lock, rows::is_blob},
};

/// The maximum number of page faults reported.
const FAULTS: usize = 100;
/// The number of rows read in one transaction.
const PAGE: usize = 256;

/// The tables that are read row by row: the noun for a row, the table, and its JSON columns.
const TABLES: [(&str, &str, &[&str]); 11] = [
    ("open task", "tasks", &["prompt", "question"]),
    ("file", "artifacts", &[]),
    ("link of state", "state_links", &["metadata"]),
    ("answer to a step on state", "state_receipts", &["answer"]),
    ("signal on its way", "outbox", &[]),
    ("session", "sessions", &[]),
    ("frame of session", "frames", &["params"]),
    ("token", "tokens", &["claims"]),
    ("answer under a key of", "idempotency", &[]),
    ("what was refused", "evidence", &[]),
    ("what is kept by layer", "kept", &["value"]),
];

/// The advice for a damaged row.
const RESTORE: &str =
    "bring it back from a backup: `moonswarm restore` makes a data directory of it";

/// Checks the pages of a database.
///
/// # Errors
/// Returns [`StoreError::Damaged`] if they are damaged, or the database's error.
pub fn quick(path: &Path) -> Result<(), StoreError> {
    let damaged = |reason| StoreError::Damaged { what: path.display().to_string(), reason };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let faults = Connection::open_with_flags(path, flags)
        .map_err(database(format!("open {}", path.display())))
        .and_then(|conn| pages(&conn, "quick_check", 3));
    match faults {
        Ok(faults) if faults.is_empty() => Ok(()),
        Ok(faults) => Err(damaged(faults.join("; "))),
        Err(StoreError::Damaged { reason, .. }) => Err(damaged(reason)),
        Err(error) => Err(error),
    }
}

/// Adds advice to the error of a database that cannot be opened because it is damaged.
pub fn advised(error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged { what, reason } => StoreError::Damaged {
            what,
            reason: format!("{reason}; {RESTORE}, and `moonswarm doctor --deep` lists the damage"),
        },
        error => error,
    }
}

/// Returns the findings of one of SQLite's own checks; empty if the pages are intact.
pub fn pages(conn: &Connection, check: &str, most: usize) -> Result<Vec<String>, StoreError> {
    let failed = || database("check the pages of the database");
    let mut statement = conn.prepare(&format!("PRAGMA {check}({most})")).map_err(failed())?;
    let lines = statement.query_map([], |row| row.get(0)).map_err(failed())?;
    let lines: Vec<String> = lines.collect::<Result<_, _>>().map_err(failed())?;
    Ok(if lines == ["ok"] { Vec::new() } else { lines })
}

/// Checks everything in the data directory `dir`, which must have no owner meanwhile.
///
/// # Errors
/// Returns [`StoreError::Owned`]. Fails when the database cannot be opened or has an older format.
pub fn directory(dir: &Path, tell: Tell<'_>) -> Result<(), StoreError> {
    let _lock = Lock::take(dir)?;
    let path = dir.join(DATABASE);
    let conn = reader(&path)?;
    let found = format::check(&conn, &path)?;
    if found != format::known() {
        return Err(StoreError::Database {
            context: format!("check {}", path.display()),
            reason: format!(
                "its format is {found}, of an older release; start `moonswarm serve` once"
            ),
        });
    }
    everything(&conn, tell)
}

/// Checks everything behind `conn`.
///
/// # Errors
/// Fails on errors of the database. Damage is not an error but a finding.
pub fn everything(conn: &Connection, tell: Tell<'_>) -> Result<(), StoreError> {
    let mut check = Check { conn, found: Findings::new(tell) };
    check.pages();
    check.runs()?;
    check.values()?;
    check.files()?;
    check.blueprints()?;
    check.rows();
    check.statistics();
    check.orphans()?;
    check.found.done();
    Ok(())
}

struct Check<'a> {
    conn: &'a Connection,
    found: Findings<'a>,
}

impl Check<'_> {
    /// Returns the number that a query yields; 0 on error, which the check of the pages reports.
    fn count(&self, sql: &str) -> u64 {
        self.conn.query_row(sql, [], |row| uint(row, 0)).unwrap_or_default()
    }

    /// Returns a read row. Reports damage and returns `None` for it.
    fn take<T>(
        &mut self,
        what: &str,
        read: Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Ok(it) => Ok(Some(it)),
            Err(StoreError::Damaged { what: named, reason }) => {
                let what = if named == "the database" { what.to_owned() } else { named };
                self.found.damaged(what, reason, RESTORE);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn pages(&mut self) {
        let of = self.count("SELECT page_count FROM pragma_page_count");
        self.found.progress("pages", 0, of);
        match pages(self.conn, "integrity_check", FAULTS) {
            Ok(faults) => {
                for fault in faults {
                    self.found.damaged("a page of the database", fault, RESTORE);
                }
            }
            Err(error) => self.found.damaged("the pages of the database", error, RESTORE),
        }
        self.found.progress("pages", of, of);
    }

    /// Visits the rows of a table by their numbers, in pages with a transaction each.
    fn each(
        &mut self,
        part: &str,
        table: &str,
        mut one: impl FnMut(&mut Self, i64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let of = self.count(&format!("SELECT count(*) FROM {table}"));
        let sql = format!("SELECT rowid FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT {PAGE}");
        let (mut after, mut done) = (i64::MIN, 0);
        self.found.progress(part, 0, of);
        loop {
            let ids = self.conn.prepare_cached(&sql).and_then(|mut it| {
                it.query_map([after], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()
            });
            let ids =
                self.take(&format!("the table {table}"), ids.map_err(database("list rows")))?;
            let Some(ids) = ids else { return Ok(()) };
            let Some(&last) = ids.last() else { return Ok(()) };
            for id in ids {
                if self.found.is_stopped() {
                    return Ok(());
                }
                one(self, id)?;
                done += 1;
            }
            after = last;
            self.found.progress(part, done, of);
        }
    }

    fn runs(&mut self) -> Result<(), StoreError> {
        self.each("runs", "runs", |check, num| {
            let num = u64::try_from(num).unwrap_or_default();
            let what = format!("the header of run {num}");
            let read = header::one(check.conn, num).map_err(database("read a run"));
            let Some(Some(header)) = check.take(&what, read)? else { return Ok(()) };
            let id = RunId::new(num, header.created_ms);
            check.found.runs += 1;
            let read = check.history(&header);
            check.take(&format!("the history of run {id}"), read)?;
            if !header.status.is_ended() {
                let known = blueprints::one(check.conn, &header.hash);
                match known.map_err(database("read a blueprint"))? {
                    Some(_) => {}
                    None => check.found.damaged(
                        format!("run {id}"),
                        format!("its blueprint {} is not stored", header.blueprint),
                        "publish the blueprint again, then `moonswarm resume`",
                    ),
                }
            }
            Ok(())
        })
    }

    /// Reads and folds all histories of a run, and compares the last one with the header.
    fn history(&mut self, header: &Header) -> Result<(), StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            what: format!("the history of run {}", RunId::new(header.num, header.created_ms)),
            reason,
        };
        let tx = self.conn.unchecked_transaction().map_err(database("begin to read a history"))?;
        // The run may have moved on, or been deleted, since its header was read.
        let now = header::one(&tx, header.num).map_err(database("read a run"))?;
        let Some(header) = now else { return Ok(()) };
        let mut end = Some((header.cursor, header.seq));
        let (mut first, mut is_last) = (0, true);
        while let Some(last) = end {
            let mut entries = Vec::new();
            end = journal::history(&tx, header.num, last, 0, &mut entries)?;
            let mut chain = Chain::lean();
            for entry in entries.iter().rev() {
                chain.apply(entry).map_err(|error| damaged(error.to_string()))?;
            }
            self.found.entries += entries.len() as u64;
            let ended = matches!(chain.state(), RunState::Ended(_));
            if is_last && ended != header.status.is_ended() {
                let status = header.status.as_str();
                return Err(damaged(format!(
                    "its header says {status}, and its last event does not"
                )));
            }
            is_last = false;
            first = entries.last().map_or(0, |first| first.seq.saturating_sub(1));
        }
        if first != 0 {
            return Err(damaged(format!("its first {first} events are missing")));
        }
        Ok(())
    }

    fn values(&mut self) -> Result<(), StoreError> {
        self.each("state", "state", |check, id| {
            let read = state::by_id(check.conn, id).map_err(database("read a value of state"));
            check.take("a value of state", read)?;
            check.found.state += 1;
            Ok(())
        })
    }

    fn files(&mut self) -> Result<(), StoreError> {
        self.each("blobs", "blobs", |check, id| {
            let read = check.conn.prepare_cached("SELECT hash, data FROM blobs WHERE rowid = ?1");
            let read = read.and_then(|mut it| {
                it.query_row([id], |row| {
                    let hash = row.get_ref(0)?.as_str()?.to_owned();
                    Ok((is_blob(&hash, row.get_ref(1)?.as_blob()?), hash))
                })
            });
            let found = match read {
                Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(()),
                read => check.take("a blob", read.map_err(database("read a blob")))?,
            };
            check.found.blobs += 1;
            let Some((Err(error), hash)) = found else { return Ok(()) };
            check.take(&format!("blob {hash}"), Err::<(), _>(error)).map(drop)
        })
    }

    fn blueprints(&mut self) -> Result<(), StoreError> {
        self.each("blueprints", "blueprints", |check, id| {
            let read =
                check.conn.query_row("SELECT hash FROM blueprints WHERE rowid = ?1", [id], |row| {
                    row.get::<_, String>(0)
                });
            let hash = match read {
                Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(()),
                read => check.take("a blueprint", read.map_err(database("read a blueprint")))?,
            };
            let Some(hash) = hash else { return Ok(()) };
            let row = blueprints::one(check.conn, &hash).map_err(database("read a blueprint"));
            let row = row.and_then(|row| row.map(|row| row.open()).transpose());
            check.take(&format!("blueprint {hash}"), row).map(drop)
        })
    }

    /// Reads all other tables: texts must be UTF-8, and documents JSON.
    fn rows(&mut self) {
        for ((what, table, documents), done) in TABLES.into_iter().zip(1..) {
            if self.found.is_stopped() {
                return;
            }
            if let Err(error) = self.table(what, table, documents) {
                self.found.damaged(format!("the table {table}"), error, RESTORE);
            }
            self.found.progress("rows", done, TABLES.len() as u64);
        }
    }

    fn table(&mut self, what: &str, table: &str, documents: &[&str]) -> Result<(), StoreError> {
        let failed = || database("read a table");
        let mut statement =
            self.conn.prepare(&format!("SELECT * FROM {table}")).map_err(failed())?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([]).map_err(failed())?;
        while let Some(row) = rows.next().map_err(failed())? {
            // The first columns identify the row.
            let name = || format!("{what} {}/{}", shown(row, 0), shown(row, 1));
            for (n, column) in columns.iter().enumerate() {
                let read = match documents.contains(&column.as_str()) {
                    true => json_or_null(row, n, name).map(drop),
                    false => match row.get_ref(n) {
                        Ok(ValueRef::Text(_)) => row.get::<_, String>(n).map(drop),
                        other => other.map(drop),
                    },
                };
                self.take(&name(), read.map_err(in_row(name)).map_err(database(column.clone())))?;
            }
        }
        Ok(())
    }

    /// Reads the statistics: counts must decode, and be of something known.
    fn statistics(&mut self) {
        for (what, table, sql, check) in stats::CHECKED {
            if self.found.is_stopped() {
                return;
            }
            if let Err(error) = self.counts(what, sql, check) {
                self.found.damaged(format!("the table {table}"), error, RESTORE);
            }
        }
    }

    fn counts(
        &mut self,
        what: &str,
        sql: &str,
        check: fn(&Row<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let failed = || database("read a table");
        let mut statement = self.conn.prepare(sql).map_err(failed())?;
        let mut rows = statement.query([]).map_err(failed())?;
        while let Some(row) = rows.next().map_err(failed())? {
            let name = || format!("{what} {}", shown(row, 0));
            self.take(what, check(row).map_err(in_row(name)).map_err(failed()))?;
        }
        Ok(())
    }

    fn orphans(&mut self) -> Result<(), StoreError> {
        let missing = [
            (
                "SELECT DISTINCT a.run || '/' || a.n || ' (' || a.name || ')' FROM artifacts a
                 WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.hash = a.hash) LIMIT ?1",
                "file",
                "its bytes are not stored",
            ),
            (
                "SELECT n.name FROM blueprint_names n
                 WHERE NOT EXISTS (SELECT 1 FROM blueprints b WHERE b.hash = n.hash) LIMIT ?1",
                "blueprint",
                "the version that it stands for is not stored; publish it again",
            ),
        ];
        for (sql, what, reason) in missing {
            for named in self.named(sql)? {
                self.found.damaged(format!("{what} {named}"), reason, RESTORE);
            }
        }
        let orphans = [
            (
                "SELECT b.hash FROM blobs b
                 WHERE NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.hash = b.hash) LIMIT ?1",
                "the bytes of a file that no run has",
            ),
            (
                "SELECT DISTINCT t.run FROM tasks t
                 WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.num = t.run) LIMIT ?1",
                "open tasks of a run that is not stored",
            ),
            (
                "SELECT DISTINCT j.run FROM journal j
                 WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.num = j.run)
                   AND NOT EXISTS (SELECT 1 FROM meta m WHERE m.key = 'debris:' || j.run) LIMIT ?1",
                "the history of a run that is not stored",
            ),
        ];
        for (sql, what) in orphans {
            for named in self.named(sql)? {
                self.found.orphan(format!("{what}: {named}"));
            }
        }
        Ok(())
    }

    /// Returns the names that a query yields, as far as its table can be read. The check of the
    /// pages reports the rest.
    fn named(&mut self, sql: &str) -> Result<Vec<String>, StoreError> {
        if self.found.is_stopped() {
            return Ok(Vec::new());
        }
        let named = self.conn.prepare(sql).and_then(|mut it| {
            it.query_map([int(FAULTS as u64)], |row| Ok(shown(row, 0)))?
                .collect::<Result<Vec<_>, _>>()
        });
        let named =
            self.take("references between tables", named.map_err(database("compare rows")))?;
        Ok(named.unwrap_or_default())
    }
}

/// Formats a value that identifies a row.
fn shown(row: &Row<'_>, column: usize) -> String {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Ok(ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_)) | Err(_) => "?".to_owned(),
    }
}
