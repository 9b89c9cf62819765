//! The side of a PostgreSQL database in a copy between stores: all in one transaction, so that an
//! interrupted copy leaves nothing.

use std::path::{Path, PathBuf};

use tokio_postgres::Row;

use super::{
    address::DatabaseAddress,
    check, codes,
    failed::Failed,
    format, header, hosts, open, place, seat, server,
    session::{Param, Session},
    value::{get, number, number_or_null},
    wire::Wire,
    words,
};
use crate::{
    protocol::{Lifetime, StoreOptions},
    store::{
        Checked, RunStatus, StoreError, TaskPhase,
        copy::{CopySide, Take},
        copy_tables::{Column, Kind, Table, Value, unfitting},
    },
};

/// The number of bytes that are fetched at a time, about.
const FETCHED: usize = 4 << 20;
/// The maximum number of rows that are fetched at a time.
const ROWS: usize = 1_024;
/// The number of headers that are indexed at a time.
const HEADERS: i64 = 500;
/// Keeps every other host out until the end of the transaction: each locks a row of these first.
const LOCK: &str =
    "LOCK TABLE moonswarm.cluster, moonswarm.nodes, moonswarm.lanes IN ACCESS EXCLUSIVE MODE";

/// A database that is copied, or copied into.
pub struct PostgresCopy {
    session: Session,
    wire: Wire,
    dir: PathBuf,
}

impl PostgresCopy {
    /// Makes the tables in an empty database, in a transaction that [`PostgresCopy::complete`] ends.
    ///
    /// # Errors
    /// Returns [`StoreError::Unfit`] for a database that is not empty, or cannot be used.
    pub fn target(dir: &Path, address: &DatabaseAddress) -> Result<Self, StoreError> {
        Self::open(dir, address, |session| {
            server::is_fit(session, address)?;
            if format::found(session, address)?.is_some() {
                let reason = "it has runs of its own; name an empty database, or remove them with \
                              DROP SCHEMA moonswarm CASCADE";
                return Err(format::unfit(address, reason.to_owned()));
            }
            session.batch("BEGIN")?;
            format::lay_out(session)
        })
    }

    /// Locks a database that no living host has.
    ///
    /// # Errors
    /// Returns [`StoreError::Taken`], and [`StoreError::Unfit`] for a database without runs.
    pub fn source(dir: &Path, address: &DatabaseAddress) -> Result<Self, StoreError> {
        if !open::Postgres::has(dir) {
            let reason = "it is not the data directory of a daemon over this database, which has the \
                          keys of its tokens and handles; name that one with --data";
            let database = dir.display().to_string();
            return Err(StoreError::Unfit { database, reason: reason.to_owned() });
        }
        let home = seat::home(dir)?;
        Self::open(dir, address, |session| {
            server::is_fit(session, address)?;
            if format::found(session, address)?.is_none() {
                let reason = "it has no runs to copy; name another database".to_owned();
                return Err(format::unfit(address, reason));
            }
            format::prepare(session, address, &home)?;
            session.batch(&format!("BEGIN; SET LOCAL lock_timeout = '20s'; {LOCK}"))?;
            if session.exists("SELECT 1 FROM moonswarm.keys", &[])? {
                let reason = "it belongs to a cluster, whose keys no data directory has; its runs stay \
                              in PostgreSQL";
                return Err(format::unfit(address, reason.to_owned()));
            }
            match hosts::living(session, &home)? {
                None => Ok(()),
                Some(node) => {
                    let database = address.to_string();
                    Err(Failed::Store(StoreError::Taken { database, node }))
                }
            }
        })
    }

    fn open(
        dir: &Path,
        address: &DatabaseAddress,
        prepare: impl FnOnce(&Session) -> Result<(), Failed>,
    ) -> Result<Self, StoreError> {
        let context = format!("open {address}");
        let wire = Wire::new(address.clone())?;
        let session = wire.copier().and_then(|session| prepare(&session).map(|()| session));
        let session = session.map_err(|error| error.explained(&context))?;
        Ok(Self { session, wire, dir: dir.to_owned() })
    }

    fn commit(&self, context: &str) -> Result<(), StoreError> {
        self.session.batch("COMMIT").map_err(|error| match error.ends_connection() {
            false => error.into_error(context),
            true => StoreError::Away {
                context: context.to_owned(),
                reason: format!(
                    "{}; nobody knows whether it did: look whether the database has runs before you \
                     repeat the copy",
                    error.reason()
                ),
            },
        })
    }

    /// Indexes the words of ended runs, as their last write would have.
    fn index_runs(&self) -> Result<(), Failed> {
        let sql = concat!(
            "SELECT ",
            header::columns!(),
            " FROM runs WHERE num > $1 AND ended_ms IS NOT NULL
                 AND (error IS NOT NULL OR status_text IS NOT NULL) ORDER BY num LIMIT $2"
        );
        let mut after = -1_i64;
        loop {
            let rows = self.session.query(sql, &[&after, &HEADERS])?;
            let (mut runs, mut indexed) = (Vec::new(), Vec::new());
            for row in &rows {
                after = number(row, 0)?;
                if let Some(words) = words::of_run(&header::read(row)?) {
                    runs.push(after);
                    indexed.push(words);
                }
            }
            self.session.execute(
                "INSERT INTO run_words (run, words)
                 SELECT run, words::tsvector FROM unnest($1::bigint[], $2::text[]) AS x (run, words)",
                &[&runs, &indexed],
            )?;
            if rows.is_empty() {
                return Ok(());
            }
        }
    }
}

impl CopySide for PostgresCopy {
    fn check(&self, tell: &mut dyn FnMut(Checked) -> bool) -> Result<(), StoreError> {
        check::everything(&self.session, tell)
            .map_err(|error| error.into_error("check the database"))
    }

    fn count(&self, table: &Table) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM \"{}\"{}", table.name, table.condition());
        let read = || match self.session.one(&sql, &[])? {
            Some(row) => super::value::uint(&row, 0),
            None => Ok(0),
        };
        read().map_err(|error| error.into_error(&format!("count {}", table.name)))
    }

    fn read(&self, table: &Table, take: Take<'_>) -> Result<(), StoreError> {
        let failed = |error: Failed| error.into_error(&format!("read {}", table.name));
        let names: Vec<String> =
            table.columns.iter().map(|it| format!("\"{}\"", it.postgres())).collect();
        let order = match table.order.postgres {
            "" => String::new(),
            order => format!(" ORDER BY {order}"),
        };
        // A name of its own for each table: statements are known by their text.
        let cursor = format!("copy_of_{}", table.name);
        let sql = format!(
            "DECLARE {cursor} NO SCROLL CURSOR FOR SELECT {} FROM \"{}\"{}{order}",
            names.join(", "),
            table.name,
            table.condition(),
        );
        self.session.batch(&sql).map_err(failed)?;
        let mut portion = 1;
        loop {
            let sql = format!("FETCH FORWARD {portion} FROM {cursor}");
            let rows = self.session.query(&sql, &[]).map_err(failed)?;
            let mut bytes = 0;
            for row in &rows {
                let values = table.columns.iter().enumerate();
                let values = values.map(|(at, column)| value(row, at, *column));
                let values = values.collect::<Result<Vec<_>, _>>().map_err(failed)?;
                bytes += size(&values);
                take(values)?;
            }
            if rows.len() < portion {
                break;
            }
            // Twice as much, until it is enough: the next rows may be larger than these.
            if bytes < FETCHED / 2 {
                portion = (2 * portion).min(ROWS);
            } else if bytes > FETCHED {
                portion = (portion / 2).max(1);
            }
        }
        self.session.batch(&format!("CLOSE {cursor}")).map_err(failed)
    }

    fn write(&mut self, table: &Table, rows: &[Vec<Value>]) -> Result<(), StoreError> {
        let mut insert = Insert::default();
        for (at, column) in table.columns.iter().enumerate() {
            let values = rows.iter().map(|row| &row[at]);
            let array = Array::of(*column, values).ok_or_else(|| unfitting(table.name))?;
            insert.add(column.postgres(), "", array);
        }
        if !table.place.is_empty() {
            let at: Vec<usize> = table.place.iter().map(|name| table.at(name)).collect();
            let place = |row: &Vec<Value>| {
                let names = at.iter().map(|at| text(&row[*at])).collect::<Option<Vec<_>>>()?;
                Some(Some(place::of(&names).to_vec()))
            };
            let places = rows.iter().map(place).collect::<Option<_>>();
            insert.add("place", "", Array::Bytes(places.ok_or_else(|| unfitting(table.name))?));
        }
        if table.name == "state" {
            let (words, bound) = derived(table, rows).ok_or_else(|| unfitting(table.name))?;
            insert.add("words", "::tsvector", Array::Texts(words));
            insert.add("session_bound", "", Array::Flag(bound));
        }
        insert
            .execute(&self.session, table.name)
            .map_err(|error| error.into_error(&format!("write {}", table.name)))
    }

    fn high(&self) -> Result<(i64, i64), StoreError> {
        let read = || match self.session.one("SELECT high_run, high_lsn FROM cluster", &[])? {
            Some(row) => Ok((get(&row, 0)?, get(&row, 1)?)),
            None => Err(Failed::Silent),
        };
        read().map_err(|error| error.into_error("read the numbers"))
    }

    fn derive(&mut self, (run, lsn): (i64, i64)) -> Result<(), StoreError> {
        let sql = "UPDATE cluster SET high_run = $1, high_lsn = $2";
        self.session
            .execute(sql, &[&run, &lsn])
            .and_then(|_| self.index_runs())
            .map_err(|error| error.into_error("index the copy"))
    }

    fn complete(&mut self) -> Result<(), StoreError> {
        seat::home(&self.dir)?;
        self.commit("keep the copy")?;
        // The planner would find out by itself, some minutes later.
        if let Err(error) = self.session.batch("ANALYZE") {
            tracing::warn!(reason = error.reason(), "failed to count the rows of the copy");
        }
        Ok(())
    }

    fn set_aside(self) -> Result<String, StoreError> {
        let set = format!(
            "DELETE FROM lanes; UPDATE nodes SET state = 'gone' WHERE state <> 'gone';
             UPDATE cluster SET format = {0}, oldest = {0}",
            format::MOVED
        );
        self.session.batch(&set).map_err(|error| error.into_error("set the database aside"))?;
        self.commit("set the database aside")?;
        Ok(self.wire.address().to_string())
    }
}

/// The words and the binding to a session of values of state.
type Derived = (Vec<Option<String>>, Vec<Option<bool>>);

fn derived(table: &Table, rows: &[Vec<Value>]) -> Option<Derived> {
    let [scope, key, hints, value] = ["scope", "key", "hints", "value"].map(|it| table.at(it));
    let mut derived = Derived::default();
    for row in rows {
        let words = words::of_value(text(&row[scope])?, text(&row[key])?, text(&row[value])?);
        let hints: StoreOptions = match &row[hints] {
            Value::Null => StoreOptions::default(),
            hints => serde_json::from_str(text(hints)?).ok()?,
        };
        derived.0.push(words);
        derived.1.push(Some(hints.lifetime == Some(Lifetime::Session)));
    }
    Some(derived)
}

/// An insert of many rows: an array a column.
#[derive(Default)]
struct Insert {
    columns: Vec<(&'static str, &'static str)>,
    arrays: Vec<Array>,
}

enum Array {
    Int(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Flag(Vec<Option<bool>>),
    Bytes(Vec<Option<Vec<u8>>>),
    Texts(Vec<Option<String>>),
}

impl Insert {
    /// Adds a column, and what is appended to its values in the statement.
    fn add(&mut self, name: &'static str, cast: &'static str, array: Array) {
        self.columns.push((name, cast));
        self.arrays.push(array);
    }

    fn execute(&self, session: &Session, table: &str) -> Result<(), Failed> {
        let list = |part: &dyn Fn(usize) -> String| {
            (0..self.columns.len()).map(part).collect::<Vec<_>>().join(", ")
        };
        let sql = format!(
            "INSERT INTO \"{table}\" ({}) SELECT {} FROM unnest({}) WITH ORDINALITY AS x ({}, place_in)
             ORDER BY place_in",
            list(&|at| format!("\"{}\"", self.columns[at].0)),
            list(&|at| format!("c{at}{}", self.columns[at].1)),
            list(&|at| format!("${}::{}[]", at + 1, self.arrays[at].kind())),
            list(&|at| format!("c{at}")),
        );
        let params: Vec<Param<'_>> = self.arrays.iter().map(Array::param).collect();
        session.execute(&sql, &params).map(drop)
    }
}

impl Array {
    /// Returns the values of a column; `None` if one is not of it.
    fn of<'a>(column: Column, values: impl Iterator<Item = &'a Value>) -> Option<Self> {
        match column.kind {
            Kind::Int => values.map(int).collect::<Option<_>>().map(Self::Int),
            Kind::Real => {
                let real = |value: &Value| match value {
                    Value::Null => Some(None),
                    Value::Real(number) => Some(Some(*number)),
                    Value::Int(_) | Value::Bytes(_) => None,
                };
                values.map(real).collect::<Option<_>>().map(Self::Real)
            }
            Kind::Flag => {
                let flag = |value| int(value).map(|it| it.map(|it| it != 0));
                values.map(flag).collect::<Option<_>>().map(Self::Flag)
            }
            Kind::Text | Kind::Bytes => {
                let bytes = |value: &Value| match value {
                    Value::Null => Some(None),
                    Value::Bytes(bytes) => Some(Some(bytes.clone())),
                    Value::Int(_) | Value::Real(_) => None,
                };
                values.map(bytes).collect::<Option<_>>().map(Self::Bytes)
            }
            Kind::Status => {
                let code =
                    |value| Some(Some(codes::status(RunStatus::parse(text(value)?)?).into()));
                values.map(code).collect::<Option<_>>().map(Self::Int)
            }
            Kind::Phase => {
                let code = |value| Some(Some(codes::phase(TaskPhase::parse(text(value)?)?).into()));
                values.map(code).collect::<Option<_>>().map(Self::Int)
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "bigint",
            Self::Real(_) => "double precision",
            Self::Flag(_) => "boolean",
            Self::Bytes(_) => "bytea",
            Self::Texts(_) => "text",
        }
    }

    fn param(&self) -> Param<'_> {
        match self {
            Self::Int(values) => values,
            Self::Real(values) => values,
            Self::Flag(values) => values,
            Self::Bytes(values) => values,
            Self::Texts(values) => values,
        }
    }
}

fn int(value: &Value) -> Option<Option<i64>> {
    match value {
        Value::Null => Some(None),
        Value::Int(number) => Some(Some(*number)),
        Value::Real(_) | Value::Bytes(_) => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
        Value::Null | Value::Int(_) | Value::Real(_) => None,
    }
}

fn value(row: &Row, at: usize, column: Column) -> Result<Value, Failed> {
    let or_null = |value: Option<Value>| value.unwrap_or(Value::Null);
    let word = |word: Option<&str>| word.map(|it| Value::Bytes(it.as_bytes().to_vec()));
    let unknown = || Failed::Store(unfitting(column.name));
    Ok(match column.kind {
        Kind::Int => or_null(number_or_null(row, at)?.map(Value::Int)),
        Kind::Real => or_null(get::<Option<f64>>(row, at)?.map(Value::Real)),
        Kind::Flag => or_null(get::<Option<bool>>(row, at)?.map(|it| Value::Int(it.into()))),
        Kind::Text | Kind::Bytes => or_null(get::<Option<Vec<u8>>>(row, at)?.map(Value::Bytes)),
        Kind::Status => {
            let status = codes::status_of(number(row, at)?).map(RunStatus::as_str);
            word(status).ok_or_else(unknown)?
        }
        Kind::Phase => {
            word(codes::phase_of(number(row, at)?).map(TaskPhase::as_str)).ok_or_else(unknown)?
        }
    })
}

fn size(values: &[Value]) -> usize {
    let of = |value: &Value| match value {
        Value::Bytes(bytes) => bytes.len(),
        Value::Null | Value::Int(_) | Value::Real(_) => 8,
    };
    values.iter().map(of).sum()
}
