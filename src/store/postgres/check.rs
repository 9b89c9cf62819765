//! The check of all content: everything is read once, one run or one portion of rows at a time, in one
//! snapshot beside the writer.
//!
//! The pages of the database are its own matter: a cluster with data checksums compares each page that
//! is read here.

use tokio_postgres::{Row, types::Type};

use super::{
    blueprints, cursor,
    failed::Failed,
    header, journal,
    session::Session,
    state, stats,
    value::{bytes, damaged, in_row, json_or_null, limit, text, text_or_null, uint},
};
use crate::{
    journal::{Chain, RunState},
    protocol::RunId,
    store::{Header, StoreError, Tell, check::Findings, rows::is_blob},
};

/// The maximum number of rows of one kind that are reported as missing or left over.
const FAULTS: usize = 100;
/// The number of rows that are read at a time.
const PORTION: usize = 256;
/// The number of files that are read at a time.
const FILES: usize = 4;
/// The advice for a damaged row.
const RESTORE: &str = "bring it back from a backup of the database";

/// The tables that are read row by row: the noun for a row, the table, the columns that identify a
/// row, and its JSON columns.
const TABLES: [(&str, &str, [&str; 2], &[&str]); 11] = [
    ("open task", "tasks", ["run", "step"], &["prompt", "question"]),
    ("file", "artifacts", ["run", "n"], &[]),
    ("link of state", "state_links", ["scope", "from_key"], &["metadata"]),
    ("answer to a step on state", "state_receipts", ["run", "step"], &["answer"]),
    ("signal on its way", "outbox", ["run", "step"], &[]),
    ("session", "sessions", ["id", "operator"], &[]),
    ("frame of session", "frames", ["session", "seq"], &["params"]),
    ("token", "tokens", ["jti", "role"], &["claims"]),
    ("answer under a key of", "idempotency", ["principal", "route"], &[]),
    ("what was refused", "evidence", ["run", "step"], &[]),
    ("what is kept by layer", "kept", ["layer", "key"], &["value"]),
];

/// Checks everything. Call it within a snapshot.
///
/// # Errors
/// Fails when the database cannot be read. Damage is not an error but a finding.
pub fn everything(db: &Session, tell: Tell<'_>) -> Result<(), Failed> {
    let mut check = Check { db, found: Findings::new(tell) };
    check.all_runs()?;
    check.values()?;
    check.files()?;
    check.blueprints()?;
    check.rows()?;
    check.statistics()?;
    check.orphans()?;
    check.found.done();
    Ok(())
}

struct Check<'a> {
    db: &'a Session,
    found: Findings<'a>,
}

impl Check<'_> {
    /// Returns what was read. Reports damage and returns `None` for it.
    fn take<T, E: Into<Failed>>(&mut self, read: Result<T, E>) -> Result<Option<T>, Failed> {
        match read.map_err(Into::into) {
            Ok(it) => Ok(Some(it)),
            Err(Failed::Store(StoreError::Damaged { what, reason })) => {
                self.found.damaged(what, reason, RESTORE);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn count(&self, table: &str) -> Result<u64, Failed> {
        let row = self.db.one(&format!("SELECT count(*) FROM {table}"), &[])?;
        row.map_or(Ok(0), |row| uint(&row, 0))
    }

    /// Visits the rows of a statement.
    fn each(
        &mut self,
        (part, table): (&str, &str),
        sql: &str,
        portion: usize,
        mut one: impl FnMut(&mut Self, &Row) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let (db, of, mut done) = (self.db, self.count(table)?, 0);
        self.found.progress(part, 0, of);
        cursor::each(db, sql, portion, |row| {
            if self.found.is_stopped() {
                return Ok(false);
            }
            one(self, row)?;
            done += 1;
            if done % PORTION as u64 == 0 {
                self.found.progress(part, done, of);
            }
            Ok(true)
        })?;
        self.found.progress(part, done, of);
        Ok(())
    }

    fn all_runs(&mut self) -> Result<(), Failed> {
        let sql = "SELECT num FROM runs ORDER BY num";
        self.each(("runs", "runs"), sql, PORTION, |check, row| {
            let num = uint(row, 0)?;
            let read = header::one(check.db, num);
            let Some(Some(header)) = check.take(read)? else { return Ok(()) };
            let id = RunId::new(num, header.created_ms);
            check.found.runs += 1;
            let read = check.history(&header);
            check.take(read)?;
            if !header.status.is_ended() && blueprints::one(check.db, &header.hash)?.is_none() {
                check.found.damaged(
                    format!("run {id}"),
                    format!("its blueprint {} is not stored", header.blueprint),
                    "publish the blueprint again, then `moonswarm resume`",
                );
            }
            Ok(())
        })
    }

    /// Reads and folds all histories of a run, and compares the last one with the header.
    fn history(&mut self, header: &Header) -> Result<(), Failed> {
        let broken = |reason: String| {
            let run = RunId::new(header.num, header.created_ms);
            damaged(format!("the history of run {run}"), reason)
        };
        let mut first = 1;
        let mut starts = journal::starts(self.db, header.num)?;
        if starts.first() != Some(&1) {
            starts.insert(0, 1);
        }
        starts.push(header.seq.saturating_add(1));
        for next in starts.into_iter().skip(1) {
            let entries = journal::window(self.db, header.num, first - 1, next.saturating_sub(1))?;
            let mut chain = Chain::lean();
            for entry in &entries {
                chain.apply(entry).map_err(|error| broken(error.to_string()))?;
            }
            self.found.entries += entries.len() as u64;
            let ended = matches!(chain.state(), RunState::Ended(_));
            if next > header.seq && ended != header.status.is_ended() {
                let status = header.status.as_str();
                return Err(broken(format!(
                    "its header says {status}, and its last event does not"
                )));
            }
            first = next;
        }
        Ok(())
    }

    fn values(&mut self) -> Result<(), Failed> {
        let sql = concat!("SELECT ", state::columns!(), " FROM state");
        self.each(("state", "state"), sql, PORTION, |check, row| {
            check.take(state::read(row))?;
            check.found.state += 1;
            Ok(())
        })
    }

    fn files(&mut self) -> Result<(), Failed> {
        let sql = "SELECT hash, data FROM blobs";
        self.each(("blobs", "blobs"), sql, FILES, |check, row| {
            check.found.blobs += 1;
            let read = text(row, 0).and_then(|hash| Ok(is_blob(&hash, bytes(row, 1)?)?));
            check.take(read.map_err(in_row(|| "a blob".to_owned()))).map(drop)
        })
    }

    fn blueprints(&mut self) -> Result<(), Failed> {
        let sql = "SELECT hash FROM blueprints";
        self.each(("blueprints", "blueprints"), sql, PORTION, |check, row| {
            let read = text(row, 0).and_then(|hash| blueprints::one(check.db, &hash));
            let Some(Some(version)) = check.take(read)? else { return Ok(()) };
            check.take(version.open()).map(drop)
        })
    }

    /// Reads all other tables: texts must be UTF-8, and documents JSON.
    fn rows(&mut self) -> Result<(), Failed> {
        for (what, table, keys, documents) in TABLES {
            if self.found.is_stopped() {
                break;
            }
            // The columns that identify a row come first.
            let sql = format!("SELECT {}, {}, t.* FROM {table} t", keys[0], keys[1]);
            self.each(("rows", table), &sql, PORTION, |check, row| {
                let name = || format!("{what} {}/{}", shown(row, 0), shown(row, 1));
                for (n, column) in row.columns().iter().enumerate().skip(2) {
                    // A place is a hash.
                    if column.type_() != &Type::BYTEA || column.name() == "place" {
                        continue;
                    }
                    let read = match documents.contains(&column.name()) {
                        true => json_or_null(row, n),
                        false => text_or_null(row, n),
                    };
                    check.take(read.map_err(in_row(name)))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads the statistics: counts must decode, and be of something known.
    fn statistics(&mut self) -> Result<(), Failed> {
        for (what, table, sql, of_row) in stats::CHECKED {
            if self.found.is_stopped() {
                break;
            }
            self.each(("rows", table), sql, PORTION, |check, row| {
                let name = || format!("{what} {}", shown(row, 0));
                check.take(of_row(row).map_err(in_row(name))).map(drop)
            })?;
        }
        Ok(())
    }

    fn orphans(&mut self) -> Result<(), Failed> {
        let missing = [
            (
                "SELECT convert_to(a.run || '/' || a.n || ' ', 'UTF8') || a.name FROM artifacts a
                 WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.hash = a.hash) LIMIT $1",
                "file",
                "its bytes are not stored",
            ),
            (
                "SELECT n.name FROM blueprint_names n
                 WHERE NOT EXISTS (SELECT 1 FROM blueprints b WHERE b.hash = n.hash) LIMIT $1",
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
                 WHERE NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.hash = b.hash) LIMIT $1",
                "the bytes of a file that no run has",
            ),
            (
                "SELECT DISTINCT t.run FROM tasks t
                 WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.num = t.run) LIMIT $1",
                "open tasks of a run that is not stored",
            ),
        ];
        for (sql, what) in orphans {
            for named in self.named(sql)? {
                self.found.orphan(format!("{what}: {named}"));
            }
        }
        Ok(())
    }

    /// Returns the names that a statement yields.
    fn named(&mut self, sql: &str) -> Result<Vec<String>, Failed> {
        if self.found.is_stopped() {
            return Ok(Vec::new());
        }
        let rows = self.db.query(sql, &[&limit(FAULTS)])?;
        Ok(rows.iter().map(|row| shown(row, 0)).collect())
    }
}

/// Formats a value that identifies a row.
fn shown(row: &Row, column: usize) -> String {
    match *row.columns()[column].type_() {
        Type::INT8 => uint::<i64>(row, column).map_or("?".to_owned(), |it| it.to_string()),
        Type::BYTEA => {
            bytes(row, column).map_or("?".to_owned(), |it| String::from_utf8_lossy(it).into())
        }
        _ => "?".to_owned(),
    }
}
