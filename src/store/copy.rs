//! A copy of a whole store into one of the other kind, while no host has either.
//!
//! Both sides are locked until the end. The target becomes one only when everything is in it and
//! was compared with the source: until then it is as it was. The source is then set aside, because
//! two hosts that go on from the same runs would give out the same handles.

use std::path::Path;

use super::{
    Checked, PostgresOptions, StoreError,
    copy_tables::{TABLES, Table, Value},
    postgres::{PostgresCopy, forget_progress},
    sqlite::SqliteCopy,
};
use crate::fault;

/// The maximum number of rows that are written at a time.
const ROWS: usize = 1_000;
/// The number of bytes after which fewer are.
const BYTES: usize = 4 << 20;

/// The side of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTo {
    /// From the data directory into the PostgreSQL database.
    Postgres,
    /// From the PostgreSQL database into the data directory.
    Sqlite,
}

/// The progress of a copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyProgress {
    /// The work that is going on: `check`, `copy` or `compare`.
    pub work: &'static str,
    /// The table, or the part of a check.
    pub part: &'static str,
    /// The number of rows that were done.
    pub done: u64,
    /// The number of rows.
    pub of: u64,
}

/// The outcome of a copy, or of a dry run.
#[derive(Debug, Clone, Default)]
pub struct StoreCopied {
    /// The tables with their rows and the bytes of these.
    pub tables: Vec<CopiedTable>,
    /// The name under which the source was set aside.
    pub aside: Option<String>,
}

/// A table of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedTable {
    /// The name of the table.
    pub name: &'static str,
    /// The number of rows.
    pub rows: u64,
    /// The bytes of their values.
    pub bytes: u64,
}

/// A side of a copy.
pub trait CopySide {
    /// Reads everything once and returns the first damage, if there is any.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    fn check(&self, tell: &mut dyn FnMut(Checked) -> bool) -> Result<(), StoreError>;

    /// Returns the number of rows of a table that are carried.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    fn count(&self, table: &Table) -> Result<u64, StoreError>;

    /// Calls `take` with each row.
    ///
    /// # Errors
    /// Fails when one cannot be read, and with what `take` returns.
    fn read(&self, table: &Table, take: Take<'_>) -> Result<(), StoreError>;

    /// Writes rows.
    ///
    /// # Errors
    /// Fails when they cannot be written.
    fn write(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError>;

    /// Returns the numbers of runs and of rows of the journal that are never given again.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    fn high(&self) -> Result<(i64, i64), StoreError>;

    /// Writes these numbers, and what the store derives from its rows.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    fn derive(&mut self, high: (i64, i64)) -> Result<(), StoreError>;

    /// Makes the complete copy the store of its side.
    ///
    /// # Errors
    /// Fails when the file system or the database does not confirm it.
    fn complete(&mut self) -> Result<(), StoreError>;

    /// Gives the source another name, or keeps hosts from starting over it. Returns the name under which
    /// it is found.
    ///
    /// # Errors
    /// Fails when that is not confirmed, and if another process has opened the source meanwhile.
    fn set_aside(self) -> Result<String, StoreError>;
}

/// Receives a row.
pub type Take<'a> = &'a mut dyn FnMut(Vec<Value>) -> Result<(), StoreError>;

/// Copies the store of `dir` into the database of `options`, or back. Both are unchanged if it fails,
/// but for a migration of the source. With `dry` it only counts.
///
/// # Errors
/// Returns [`StoreError::Owned`] or [`StoreError::Taken`] if a host has one of them,
/// [`StoreError::Damaged`] if the source is not intact, and [`StoreError::Unfit`] if the target is
/// not empty, or differs from the source at the end.
pub fn copy(
    dir: &Path,
    options: &PostgresOptions,
    to: CopyTo,
    dry: bool,
    tell: &mut dyn FnMut(CopyProgress),
) -> Result<StoreCopied, StoreError> {
    match to {
        CopyTo::Postgres => {
            let source = SqliteCopy::source(dir, dry)?;
            move_over(source, PostgresCopy::target(dir, &options.address)?, dry, tell)
        }
        CopyTo::Sqlite => {
            let target = SqliteCopy::target(dir, dry)?;
            let copied =
                move_over(PostgresCopy::source(dir, &options.address)?, target, dry, tell)?;
            if !dry {
                // Another database may have the runs next, with rows of its own.
                forget_progress(dir)?;
            }
            Ok(copied)
        }
    }
}

fn move_over(
    source: impl CopySide,
    mut target: impl CopySide,
    dry: bool,
    tell: &mut dyn FnMut(CopyProgress),
) -> Result<StoreCopied, StoreError> {
    if dry {
        return counted(&source);
    }
    let tables = carry(&source, &mut target, tell)?;
    fault::point("store.copied");
    target.complete()?;
    Ok(StoreCopied { tables, aside: Some(source.set_aside()?) })
}

fn counted(source: &impl CopySide) -> Result<StoreCopied, StoreError> {
    let table =
        |table: &Table| Ok(CopiedTable { name: table.name, rows: source.count(table)?, bytes: 0 });
    let tables = TABLES.iter().map(table).collect::<Result<_, StoreError>>()?;
    Ok(StoreCopied { tables, aside: None })
}

fn carry(
    source: &impl CopySide,
    target: &mut impl CopySide,
    tell: &mut dyn FnMut(CopyProgress),
) -> Result<Vec<CopiedTable>, StoreError> {
    check(source, tell)?;
    let mut sums = Vec::with_capacity(TABLES.len());
    for table in TABLES {
        sums.push(carry_table(source, target, table, tell)?);
    }
    let high = source.high()?;
    target.derive(high)?;
    for (table, sum) in TABLES.iter().zip(&sums) {
        let found = compare(target, table, sum.rows, tell)?;
        if found != *sum {
            let reason = format!(
                "the table {} of the copy has {} rows in place of {}, or others; the copy was given \
                 up, and nothing was changed: repeat it",
                table.name, found.rows, sum.rows
            );
            return Err(StoreError::Unfit { database: "the copy".to_owned(), reason });
        }
    }
    if target.high()? != high {
        let reason = "its numbers are not those of the source; repeat the copy".to_owned();
        return Err(StoreError::Unfit { database: "the copy".to_owned(), reason });
    }
    let tables = TABLES.iter().zip(sums);
    Ok(tables
        .map(|(it, sum)| CopiedTable { name: it.name, rows: sum.rows, bytes: sum.bytes })
        .collect())
}

fn check(source: &impl CopySide, tell: &mut dyn FnMut(CopyProgress)) -> Result<(), StoreError> {
    let mut damage = None;
    source.check(&mut |checked| {
        match checked {
            Checked::Damaged { what, reason, .. } => {
                damage = Some((what, reason));
                return false;
            }
            Checked::Progress { part, done, of } => {
                let parts = ["pages", "runs", "state", "blobs", "blueprints", "rows"];
                let part = parts.into_iter().find(|it| *it == part).unwrap_or("rows");
                tell(CopyProgress { work: "check", part, done, of });
            }
            Checked::Orphan { .. } | Checked::Done { .. } => {}
        }
        true
    })?;
    match damage {
        None => Ok(()),
        Some((what, reason)) => {
            let reason = format!(
                "{reason}; only an intact store is copied: `moonswarm doctor --deep` lists all damage"
            );
            Err(StoreError::Damaged { what, reason })
        }
    }
}

/// The number of rows of a table, their bytes, and a sum over them that does not depend on their
/// order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    rows: u64,
    bytes: u64,
    sum: u64,
}

impl Sum {
    fn add(&mut self, row: &[Value]) {
        let mut hash = blake3::Hasher::new();
        for value in row {
            // Each value has its kind and its length before it, so that none is taken for another.
            let mut part = |kind: u8, bytes: &[u8]| {
                hash.update(&[kind]);
                hash.update(&(bytes.len() as u64).to_le_bytes());
                hash.update(bytes);
                self.bytes += bytes.len() as u64;
            };
            match value {
                Value::Null => part(0, &[]),
                Value::Int(number) => part(1, &number.to_le_bytes()),
                // Zero has no sign here: one of the databases drops it.
                Value::Real(number) => part(2, &(number + 0.0).to_bits().to_le_bytes()),
                Value::Bytes(bytes) => part(3, bytes),
            }
        }
        let hash = hash.finalize();
        let first = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        self.sum = self.sum.wrapping_add(u64::from_le_bytes(*first));
        self.rows += 1;
    }
}

fn carry_table(
    source: &impl CopySide,
    target: &mut impl CopySide,
    table: &Table,
    tell: &mut dyn FnMut(CopyProgress),
) -> Result<Sum, StoreError> {
    let of = source.count(table)?;
    let (mut sum, mut rows, mut bytes) = (Sum::default(), Vec::new(), 0);
    source.read(table, &mut |row| {
        let before = sum.bytes;
        sum.add(&row);
        bytes += usize::try_from(sum.bytes - before).unwrap_or(usize::MAX);
        rows.push(row);
        if rows.len() >= ROWS || bytes >= BYTES {
            target.write(table, &rows)?;
            rows.clear();
            bytes = 0;
            tell(CopyProgress { work: "copy", part: table.name, done: sum.rows, of });
        }
        Ok(())
    })?;
    if !rows.is_empty() {
        target.write(table, &rows)?;
    }
    tell(CopyProgress { work: "copy", part: table.name, done: sum.rows, of });
    Ok(sum)
}

fn compare(
    target: &impl CopySide,
    table: &Table,
    of: u64,
    tell: &mut dyn FnMut(CopyProgress),
) -> Result<Sum, StoreError> {
    let mut sum = Sum::default();
    target.read(table, &mut |row| {
        sum.add(&row);
        if sum.rows.is_multiple_of(ROWS as u64) {
            tell(CopyProgress { work: "compare", part: table.name, done: sum.rows, of });
        }
        Ok(())
    })?;
    tell(CopyProgress { work: "compare", part: table.name, done: sum.rows, of });
    Ok(sum)
}

#[cfg(test)]
mod tests;
