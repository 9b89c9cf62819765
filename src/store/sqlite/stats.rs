//! The tables `stats_new`, `stats` and `stats_costly`: ended runs, and the sums of those before them.
//!
//! The end of a run adds one row. Every [`FOLDED`] rows are folded into sums, in the transaction of the
//! last of them, so that readers add up few rows, however many runs have ended.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{
    Connection, OptionalExtension as _, Row, params,
    types::{FromSqlError, ValueRef},
};

use super::value::{int, uint};
use crate::{
    journal::{Dimension, Ending, Measure, Tally, TallyKey},
    store::{
        CostlyRun, CountedRun, Grain, RunStatus, StatsFilter, StatsRow,
        stats::{
            COSTLY, HOURS_KEPT_MS, Sums, check_counts, check_sum, decode_counts, most_expensive,
        },
    },
};

/// The number of ended runs that are folded together.
const FOLDED: i64 = 256;

/// Drops the sums by hour (see [`grain_code`]) from before a time. Each dimension (see [`of_code`]) is
/// named, because the primary key has it before the time.
const DROP_HOURS: &str = "DELETE FROM stats WHERE grain = 0 AND of IN (0, 1, 2) AND at_ms < ?1";

/// The reader of a row for the check of all content.
type RowCheck = fn(&Row<'_>) -> rusqlite::Result<()>;

/// The tables for the check of all content: the noun for a row, the table, the statement (its first
/// column identifies a row) and the reader of a row.
pub const CHECKED: [(&str, &str, &str, RowCheck); 3] = [
    ("counts of an ended run, row", "stats_new", "SELECT id, body FROM stats_new", |row| {
        sound(check_counts::<CountedRun>(row.get_ref(1)?.as_blob()?))
    }),
    (
        "sum of",
        "stats",
        "SELECT name || ' at ' || at_ms, name, at_ms, grain, of, ending, body FROM stats",
        |row| {
            row.get::<_, String>(1)?;
            uint(row, 2)?;
            let codes = [row.get(3)?, row.get(4)?, row.get(5)?];
            sound(check_sum(codes, row.get_ref(6)?.as_blob()?))
        },
    ),
    (
        "usage of run",
        "stats_costly",
        "SELECT run, day_ms, created_ms, blueprint, tokens, nano_usd FROM stats_costly",
        |row| {
            row.get::<_, String>(3)?;
            [0, 1, 2, 4, 5].into_iter().try_for_each(|column| uint(row, column).map(drop))
        },
    ),
];

/// Converts the problem of a row.
fn sound(checked: Result<(), String>) -> rusqlite::Result<()> {
    checked.map_err(|problem| FromSqlError::Other(problem.into()).into())
}

/// Adds the counts of a run.
pub fn add(conn: &Connection, counted: &CountedRun) -> rusqlite::Result<()> {
    let body = postcard::to_allocvec(counted).expect("counts are plain data");
    conn.prepare_cached("INSERT INTO stats_new (body) VALUES (?1)")?.execute([body])?;
    if conn.last_insert_rowid() % FOLDED == 0 { fold(conn, counted.ended_ms) } else { Ok(()) }
}

/// Folds the new rows into the sums, and drops sums by hour that are too old.
fn fold(conn: &Connection, now_ms: u64) -> rusqlite::Result<()> {
    // Numbers begin again with 1, and so count the rows since.
    fold_all(conn)?;
    conn.prepare_cached(DROP_HOURS)?.execute([int(now_ms.saturating_sub(HOURS_KEPT_MS))]).map(drop)
}

fn write(conn: &Connection, sums: Sums) -> rusqlite::Result<()> {
    let mut known = conn.prepare_cached(
        "SELECT body FROM stats WHERE grain = ?1 AND at_ms = ?2 AND of = ?3 AND name = ?4 AND ending = ?5",
    )?;
    let mut put = conn.prepare_cached(
        "INSERT OR REPLACE INTO stats (grain, at_ms, of, name, ending, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for ((grain, key), more) in sums.rows {
        let TallyKey { hour_ms, of, name, ending } = key;
        let place = (grain_code(grain), int(hour_ms), of_code(of), name, ending_code(ending));
        let stored = known
            .query_row(params![place.0, place.1, place.2, place.3, place.4], |row| {
                Ok(decode::<Measure>(row.get_ref(0)?))
            })
            .optional()?;
        let mut sum = stored.flatten().unwrap_or_default();
        sum.add(&more);
        let body = postcard::to_allocvec(&sum).expect("counts are plain data");
        put.execute(params![place.0, place.1, place.2, place.3, place.4, body])?;
    }
    let mut cost = conn.prepare_cached(
        "INSERT INTO stats_costly (day_ms, run, created_ms, blueprint, tokens, nano_usd)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (day_ms, run) DO UPDATE SET
             tokens = min(tokens + excluded.tokens, 1 << 60),
             nano_usd = min(nano_usd + excluded.nano_usd, 1 << 60)",
    )?;
    let mut days = Vec::new();
    for ((day_ms, _), it) in sums.costly {
        let sums = (int(it.tokens.min(1 << 60)), int(it.nano_usd.min(1 << 60)));
        cost.execute(params![
            int(day_ms),
            int(it.run),
            int(it.created_ms),
            it.blueprint,
            sums.0,
            sums.1
        ])?;
        days.push(day_ms);
    }
    days.dedup();
    let mut trim = conn.prepare_cached(
        "DELETE FROM stats_costly WHERE day_ms = ?1 AND run NOT IN (
             SELECT run FROM stats_costly WHERE day_ms = ?1
             ORDER BY nano_usd DESC, tokens DESC, run DESC LIMIT ?2)",
    )?;
    for day_ms in days {
        trim.execute(params![int(day_ms), COSTLY])?;
    }
    Ok(())
}

/// Returns the sums of the rows that were not folded yet.
fn unfolded(conn: &Connection) -> rusqlite::Result<Sums> {
    let mut sums = Sums::default();
    let mut rows = conn.prepare_cached("SELECT body FROM stats_new ORDER BY id")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(counted) = decode::<CountedRun>(row.get_ref(0)?) {
            sums.add(&counted);
        }
    }
    Ok(sums)
}

/// Returns the sums that a filter names, by time, name and ending.
pub fn list(conn: &Connection, filter: &StatsFilter) -> rusqlite::Result<Vec<StatsRow>> {
    let mut found: BTreeMap<(u64, String, Ending), Measure> = BTreeMap::new();
    let mut rows = conn.prepare_cached(
        "SELECT at_ms, name, ending, body FROM stats
         WHERE grain = ?1 AND of = ?2 AND at_ms >= ?3 AND (?4 IS NULL OR name = ?4)",
    )?;
    let place =
        params![grain_code(filter.grain), of_code(filter.of), int(filter.since_ms), filter.name];
    let mut rows = rows.query(place)?;
    while let Some(row) = rows.next()? {
        let key = (uint(row, 0)?, row.get(1)?, ending_of(row.get(2)?));
        if let Some(measure) = decode(row.get_ref(3)?) {
            found.insert(key, measure);
        }
    }
    for row in unfolded(conn)?.find(filter) {
        found.entry((row.at_ms, row.name, row.ending)).or_default().add(&row.measure);
    }
    let row = |((at_ms, name, ending), measure)| StatsRow { at_ms, name, ending, measure };
    Ok(found.into_iter().map(row).collect())
}

/// Returns the most expensive runs of the days since a time.
pub fn costly(conn: &Connection, since_ms: u64, limit: usize) -> rusqlite::Result<Vec<CostlyRun>> {
    let since_ms = Grain::Day.begin(since_ms);
    let mut days: Vec<CostlyRun> = conn
        .prepare_cached(
            "SELECT run, created_ms, blueprint, tokens, nano_usd FROM stats_costly WHERE day_ms >= ?1",
        )?
        .query_map([int(since_ms)], |row| {
            Ok(CostlyRun {
                run: uint(row, 0)?,
                created_ms: uint(row, 1)?,
                blueprint: row.get(2)?,
                tokens: uint(row, 3)?,
                nano_usd: uint(row, 4)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let new = unfolded(conn)?.costly.into_iter().filter(|((day_ms, _), _)| *day_ms >= since_ms);
    days.extend(new.map(|(_, it)| it));
    Ok(most_expensive(days, limit))
}

/// Returns the names of all sums, and of what was not folded yet.
pub fn names(conn: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut known = conn.prepare("SELECT DISTINCT name FROM stats")?;
    let known = known.query_map([], |row| row.get(0))?;
    let mut names: BTreeSet<String> = known.collect::<rusqlite::Result<_>>()?;
    names.extend(unfolded(conn)?.rows.into_keys().map(|(_, key)| key.name));
    Ok(names)
}

/// Removes a run from the most expensive ones. Its counts stay in the sums, which name no run.
pub fn forget_run(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    fold_all(conn)?;
    conn.prepare_cached("DELETE FROM stats_costly WHERE run = ?1")?.execute([int(run)]).map(drop)
}

/// Removes the sums of a blueprint, an agent or a model.
pub fn forget_name(conn: &Connection, name: &str) -> rusqlite::Result<()> {
    fold_all(conn)?;
    conn.prepare_cached("DELETE FROM stats_costly WHERE blueprint = ?1")?.execute([name])?;
    conn.prepare_cached("DELETE FROM stats WHERE name = ?1")?.execute([name]).map(drop)
}

/// Folds the new rows into the sums: they have the numbers of their runs.
fn fold_all(conn: &Connection) -> rusqlite::Result<()> {
    write(conn, unfolded(conn)?)?;
    conn.execute("DELETE FROM stats_new", []).map(drop)
}

/// Counts the runs that ended before there were statistics, without what they used.
pub fn fill(conn: &Connection) -> rusqlite::Result<()> {
    let mut sums = Sums::default();
    let mut rows = conn.prepare(
        "SELECT num, created_ms, ended_ms, blueprint, status FROM runs WHERE ended_ms IS NOT NULL",
    )?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let ending = match row.get::<_, String>(4)?.as_str() {
            status if status == RunStatus::Completed.as_str() => Ending::Completed,
            status if status == RunStatus::Failed.as_str() => Ending::Failed,
            status if status == RunStatus::Canceled.as_str() => Ending::Canceled,
            _ => continue,
        };
        sums.add(&CountedRun {
            run: uint(row, 0)?,
            created_ms: uint(row, 1)?,
            ended_ms: uint(row, 2)?,
            blueprint: row.get(3)?,
            ending,
            tally: Tally::default(),
        });
    }
    write(conn, sums)
}

fn decode<T: serde::de::DeserializeOwned>(body: ValueRef<'_>) -> Option<T> {
    decode_counts(body.as_blob().unwrap_or_default())
}

fn grain_code(grain: Grain) -> i64 {
    match grain {
        Grain::Hour => 0,
        Grain::Day => 1,
    }
}

fn of_code(of: Dimension) -> i64 {
    match of {
        Dimension::Blueprint => 0,
        Dimension::Agent => 1,
        Dimension::Model => 2,
    }
}

fn ending_code(ending: Ending) -> i64 {
    match ending {
        Ending::Open => 0,
        Ending::Completed => 1,
        Ending::Failed => 2,
        Ending::Canceled => 3,
    }
}

fn ending_of(code: i64) -> Ending {
    match code {
        1 => Ending::Completed,
        2 => Ending::Failed,
        3 => Ending::Canceled,
        _ => Ending::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_sums_by_hour_are_found_by_the_primary_key_of_each_dimension() {
        let mut conn = Connection::open_in_memory().unwrap();
        crate::store::sqlite::format::migrate(&mut conn, 0).unwrap();
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {DROP_HOURS}")).unwrap();
        let lines = statement.query_map([9], |row| row.get::<_, String>(3)).unwrap();
        let plan = lines.map(Result::unwrap).collect::<Vec<_>>().join("; ");
        assert!(plan.contains("at_ms<?") && plan.contains("of=?"), "{plan}");
        let all = [Dimension::Blueprint, Dimension::Agent, Dimension::Model];
        assert_eq!(all.map(of_code), [0, 1, 2]);
    }
}
