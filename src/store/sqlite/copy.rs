//! The side of the embedded database in a copy between stores.

use std::{
    cell::Cell,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, Row, params_from_iter, types::ValueRef};

use super::{
    check,
    connection::{DATABASE, Synchronous, create, reader, sync, writable},
    error::{database, file},
    format, header, journal, mark,
    open::{Options, Sqlite},
    run_index, state_text,
};
use crate::{
    journal::Entry,
    store::{
        Checked, JournalRow, StoreError,
        copy::{CopySide, Take},
        copy_tables::{JOURNAL, Kind, Table, Value, unfitting},
        lock::Lock,
    },
};

/// The file that becomes the database when the copy is complete.
const DRAFT: &str = "moonswarm.copying";
/// The suffixes of the files that SQLite may have beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// A data directory that is copied, or copied into.
pub struct SqliteCopy {
    conn: Connection,
    dir: PathBuf,
    /// The owner of a source that may be set aside.
    store: Option<Arc<Sqlite>>,
    /// The last row of the journal that was written: its run, and its number.
    last: Cell<Option<(u64, u64)>>,
    /// True if `DRAFT` is to be removed.
    has_draft: bool,
    _lock: Option<Lock>,
}

impl SqliteCopy {
    /// Takes ownership of a directory and opens its database. If it is not `dry`, migrates it to this
    /// program's format.
    ///
    /// # Errors
    /// Fails like [`Sqlite::open`], and for a directory without a database.
    pub fn source(dir: &Path, dry: bool) -> Result<Self, StoreError> {
        if !Sqlite::is_in(dir) {
            return Err(unfit(dir, "it has no runs to copy; name another directory with --data"));
        }
        let path = dir.join(DATABASE);
        let (store, lock) = match dry {
            true => (None, Some(Lock::take(dir)?)),
            false => (Some(Sqlite::open(dir, &Options::default())?), None),
        };
        let conn = reader(&path)?;
        if format::check(&conn, &path)? != format::known() {
            let reason = "an earlier release wrote it, and a copy migrates it first; copy it without \
                          --dry-run";
            return Err(unfit(dir, reason));
        }
        Ok(Self::new(conn, dir, store, lock))
    }

    /// Takes ownership of a directory without a database, and makes one under another name.
    ///
    /// # Errors
    /// Returns [`StoreError::Owned`]. Fails when there is a database, and on errors of the file system.
    pub fn target(dir: &Path, dry: bool) -> Result<Self, StoreError> {
        let lock = Some(Lock::take(dir)?);
        if Sqlite::is_in(dir) {
            let reason = format!("it has runs of its own; move {DATABASE} away first");
            return Err(unfit(dir, &reason));
        }
        if dry {
            let conn = Connection::open_in_memory().map_err(database("open a database"))?;
            return Ok(Self::new(conn, dir, None, lock));
        }
        remove(dir);
        let draft = dir.join(DRAFT);
        create(&draft)?;
        let conn = writable(&draft, Synchronous::Normal)?;
        // If anything fails, the file is removed: nothing in it needs to be undone.
        conn.pragma_update(None, "journal_mode", "OFF")
            .and_then(|()| conn.pragma_update(None, "synchronous", "OFF"))
            .map_err(database("prepare the copy"))?;
        let mut target = Self::new(conn, dir, None, lock);
        target.has_draft = true;
        Ok(target)
    }

    fn new(conn: Connection, dir: &Path, store: Option<Arc<Sqlite>>, lock: Option<Lock>) -> Self {
        let (dir, last) = (dir.to_owned(), Cell::new(None));
        Self { conn, dir, store, last, has_draft: false, _lock: lock }
    }

    /// Closes the database: one in memory takes its place.
    fn close(&mut self) -> Result<(), StoreError> {
        self.conn = Connection::open_in_memory().map_err(database("open a database"))?;
        Ok(())
    }

    fn write_entry(&self, row: &[Value]) -> Result<(), StoreError> {
        let [Value::Int(run), Value::Int(seq), Value::Int(lsn), Value::Int(begins), entry] = row
        else {
            return Err(unfitting(JOURNAL));
        };
        let (Ok(run), Ok(seq), Ok(lsn), Value::Bytes(bytes)) =
            (u64::try_from(*run), u32::try_from(*seq), u64::try_from(*lsn), entry)
        else {
            return Err(unfitting(JOURNAL));
        };
        let last = self.last.replace(Some((run, lsn)));
        let before = last.filter(|(of, _)| *of == run).map(|(_, lsn)| lsn);
        let row = JournalRow { lsn, seq, before, begins: *begins != 0, bytes: bytes.clone() };
        journal::append(&self.conn, [(run, &row)]).map_err(database("write the journal"))
    }
}

impl CopySide for SqliteCopy {
    fn check(&self, tell: &mut dyn FnMut(Checked) -> bool) -> Result<(), StoreError> {
        check::everything(&self.conn, tell)
    }

    fn count(&self, table: &Table) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM {}{}", table.name, table.condition());
        let count = self.conn.query_row(&sql, [], |row| super::value::uint(row, 0));
        count.map_err(database(format!("count {}", table.name)))
    }

    fn read(&self, table: &Table, take: Take<'_>) -> Result<(), StoreError> {
        let failed = || database(format!("read {}", table.name));
        let names: Vec<&str> = match table.name {
            JOURNAL => vec!["run", "NULL", "lsn", "prev_lsn IS NULL", "entry"],
            _ => table.columns.iter().map(|it| it.name).collect(),
        };
        let mut sql =
            format!("SELECT {} FROM {}{}", names.join(", "), table.name, table.condition());
        if !table.order.sqlite.is_empty() {
            sql.push_str(" ORDER BY ");
            sql.push_str(table.order.sqlite);
        }
        let mut statement = self.conn.prepare(&sql).map_err(failed())?;
        let mut rows = statement.query([]).map_err(failed())?;
        while let Some(row) = rows.next().map_err(failed())? {
            let mut values = (0..table.columns.len())
                .map(|at| value(row, at, table.columns[at].kind))
                .collect::<rusqlite::Result<Vec<_>>>()
                .map_err(failed())?;
            if table.name == JOURNAL {
                let seq = match values.last() {
                    Some(Value::Bytes(entry)) => Entry::seq_of(entry),
                    _ => None,
                };
                values[1] = Value::Int(seq.ok_or_else(|| unfitting(JOURNAL))?.into());
            }
            take(values)?;
        }
        Ok(())
    }

    fn write(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError> {
        let failed = || database(format!("write {}", table.name));
        let tx = self.conn.unchecked_transaction().map_err(failed())?;
        if table.name == JOURNAL {
            rows.iter().try_for_each(|row| self.write_entry(row))?;
            return tx.commit().map_err(failed());
        }
        let names: Vec<&str> = table.columns.iter().map(|it| it.name).collect();
        let marks = vec!["?"; names.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES ({marks})", table.name, names.join(", "));
        let mut insert = tx.prepare_cached(&sql).map_err(failed())?;
        for row in rows {
            let values = row.iter().zip(table.columns).map(|(value, column)| {
                stored(value, column.kind).ok_or_else(|| unfitting(table.name))
            });
            let values = values.collect::<Result<Vec<_>, _>>()?;
            insert.execute(params_from_iter(values)).map_err(failed())?;
        }
        drop(insert);
        tx.commit().map_err(failed())
    }

    fn high(&self) -> Result<(i64, i64), StoreError> {
        self.conn
            .query_row("SELECT run, lsn FROM high_water", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(database("read the numbers"))
    }

    fn derive(&mut self, high: (i64, i64)) -> Result<(), StoreError> {
        let tx = self.conn.unchecked_transaction().map_err(database("index the copy"))?;
        tx.execute("UPDATE high_water SET run = ?1, lsn = ?2", [high.0, high.1])
            .and_then(|_| header::seal(&tx, "1"))
            .and_then(|()| state_text::fill(&tx))
            .and_then(|()| run_index::fill(&tx))
            .and_then(|()| tx.commit())
            .map_err(database("index the copy"))
    }

    fn complete(&mut self) -> Result<(), StoreError> {
        self.close()?;
        let (draft, path) = (self.dir.join(DRAFT), self.dir.join(DATABASE));
        File::open(&draft).and_then(|it| it.sync_all()).map_err(file("sync", &draft))?;
        // It is of the database that was here before.
        mark::remove(&self.dir)?;
        fs::rename(&draft, &path).map_err(file("rename", &draft))?;
        self.has_draft = false;
        sync(&self.dir)
    }

    fn set_aside(mut self) -> Result<String, StoreError> {
        self.close()?;
        if let Some(store) = self.store.take() {
            store.close()?;
        }
        let _lock = Lock::take(&self.dir)?;
        let free = |number: &u32| !self.dir.join(aside(*number)).exists();
        let name = (1..=u32::MAX).find(free).map(aside).unwrap_or_default();
        for end in BESIDE {
            let (from, to) = (format!("{DATABASE}{end}"), format!("{name}{end}"));
            let from = self.dir.join(from);
            // A file without content has no commits.
            if fs::metadata(&from).is_ok_and(|it| it.len() > 0) && end != "-shm" {
                fs::rename(&from, self.dir.join(to)).map_err(file("rename", &from))?;
            } else if from.exists() {
                fs::remove_file(&from).map_err(file("remove", &from))?;
            }
        }
        let from = self.dir.join(DATABASE);
        fs::rename(&from, self.dir.join(&name)).map_err(file("rename", &from))?;
        mark::remove(&self.dir)?;
        sync(&self.dir)?;
        Ok(name)
    }
}

impl Drop for SqliteCopy {
    fn drop(&mut self) {
        if self.has_draft {
            remove(&self.dir);
        }
    }
}

/// Returns the name of a database whose content goes on in PostgreSQL.
fn aside(number: u32) -> String {
    match number {
        1 => "copied-to-postgres.db".to_owned(),
        more => format!("copied-to-postgres-{more}.db"),
    }
}

/// Removes an incomplete copy, where there is one.
fn remove(dir: &Path) {
    for end in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(dir.join(format!("{DRAFT}{end}")));
    }
}

fn value(row: &Row<'_>, at: usize, kind: Kind) -> rusqlite::Result<Value> {
    Ok(match row.get_ref(at)? {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) if kind == Kind::Real => Value::Real(number as f64),
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}

/// Returns a value as the database stores it; `None` if it is not of its column.
fn stored(value: &Value, kind: Kind) -> Option<rusqlite::types::Value> {
    use rusqlite::types::Value as Stored;
    Some(match (value, kind) {
        (Value::Null, _) => Stored::Null,
        (Value::Int(number), Kind::Int | Kind::Flag) => Stored::Integer(*number),
        (Value::Real(number), Kind::Real) => Stored::Real(*number),
        (Value::Bytes(bytes), Kind::Bytes) => Stored::Blob(bytes.clone()),
        (Value::Bytes(bytes), Kind::Text | Kind::Status | Kind::Phase) => {
            Stored::Text(String::from_utf8(bytes.clone()).ok()?)
        }
        (Value::Int(_) | Value::Real(_) | Value::Bytes(_), _) => return None,
    })
}

fn unfit(dir: &Path, reason: &str) -> StoreError {
    StoreError::Unfit { database: dir.display().to_string(), reason: reason.to_owned() }
}
