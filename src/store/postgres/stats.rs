//! The tables `stats` and `stats_costly`: the sums of ended runs. Rows that were not folded into them
//! yet are added to what is read.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::{
    codes,
    failed::Failed,
    session::Session,
    stats_fold::unfolded,
    value::{A_ROW, bytes, damaged, in_row, int, number, text, uint, word},
};
use crate::{
    journal::{Ending, Measure},
    store::{
        CostlyRun, CountedRun, Grain, StatsFilter, StatsRow,
        stats::{check_counts, check_sum, decode_counts, most_expensive},
    },
};

/// The reader of a row for the check of all content.
type RowCheck = fn(&Row) -> Result<(), Failed>;

/// The tables for the check of all content: the noun for a row, the table, the statement (its first
/// column identifies a row) and the reader of a row.
pub const CHECKED: [(&str, &str, &str, RowCheck); 3] = [
    ("counts of an ended run, row", "stats_new", "SELECT id, body FROM stats_new", |row| {
        sound(check_counts::<CountedRun>(bytes(row, 1)?))
    }),
    (
        "sum of",
        "stats",
        "SELECT name || convert_to(' at ' || at_ms, 'UTF8'), name, at_ms, grain, of, ending, body
         FROM stats",
        |row| {
            text(row, 1)?;
            uint::<u64>(row, 2)?;
            let codes = [number(row, 3)?, number(row, 4)?, number(row, 5)?];
            sound(check_sum(codes, bytes(row, 6)?))
        },
    ),
    (
        "usage of run",
        "stats_costly",
        "SELECT run, day_ms, created_ms, blueprint, tokens, nano_usd FROM stats_costly",
        |row| {
            text(row, 3)?;
            [0, 1, 2, 4, 5].into_iter().try_for_each(|column| uint::<u64>(row, column).map(drop))
        },
    ),
];

/// Converts the problem of a row.
fn sound(checked: Result<(), String>) -> Result<(), Failed> {
    checked.map_err(|problem| damaged(A_ROW, problem))
}

/// Returns the sums that a filter names, by time, name and ending. Call it within a snapshot.
pub fn list(db: &Session, filter: &StatsFilter) -> Result<Vec<StatsRow>, Failed> {
    let mut found: BTreeMap<SumKey, Measure> = BTreeMap::new();
    let (grain, of) = (codes::grain(filter.grain), codes::dimension(filter.of));
    let name = filter.name.as_deref().map(str::as_bytes);
    for row in db.query(LIST, &[&grain, &of, &int(filter.since_ms), &name])? {
        let (key, measure) = sum(&row).map_err(in_row(|| "a sum of runs".to_owned()))?;
        found.extend(measure.map(|measure| (key, measure)));
    }
    for row in unfolded(db)?.find(filter) {
        found.entry((row.at_ms, row.name, row.ending)).or_default().add(&row.measure);
    }
    let row = |((at_ms, name, ending), measure)| StatsRow { at_ms, name, ending, measure };
    Ok(found.into_iter().map(row).collect())
}

const LIST: &str = "
    SELECT at_ms, name, ending, body FROM stats
    WHERE grain = $1 AND of = $2 AND at_ms >= $3 AND ($4::bytea IS NULL OR name = $4)";

/// The key of a sum: its time, name and ending.
type SumKey = (u64, String, Ending);

fn sum(row: &Row) -> Result<(SumKey, Option<Measure>), Failed> {
    let key = (uint(row, 0)?, text(row, 1)?, word(row, 2, codes::ending_of)?);
    Ok((key, decode_counts(bytes(row, 3)?)))
}

/// Returns the most expensive runs of the days since a time. Call it within a snapshot.
pub fn costly(db: &Session, since_ms: u64, limit: usize) -> Result<Vec<CostlyRun>, Failed> {
    let since_ms = Grain::Day.begin(since_ms);
    let sql = "
        SELECT run, created_ms, blueprint, tokens, nano_usd FROM stats_costly WHERE day_ms >= $1";
    let read = |row: &Row| {
        Ok(CostlyRun {
            run: uint(row, 0)?,
            created_ms: uint(row, 1)?,
            blueprint: text(row, 2)?,
            tokens: uint(row, 3)?,
            nano_usd: uint(row, 4)?,
        })
    };
    let what = || "the usage of a run".to_owned();
    let rows = db.query(sql, &[&int(since_ms)])?;
    let days = rows.iter().map(|row| read(row).map_err(in_row(what)));
    let mut days: Vec<CostlyRun> = days.collect::<Result<_, Failed>>()?;
    let new = unfolded(db)?.costly.into_iter().filter(|((day_ms, _), _)| *day_ms >= since_ms);
    days.extend(new.map(|(_, it)| it));
    Ok(most_expensive(days, limit))
}
