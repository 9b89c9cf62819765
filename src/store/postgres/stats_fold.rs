//! The tables `stats_new`, `stats` and `stats_costly`: ended runs, and the sums of those before them.
//!
//! The end of a run adds one row. When there are [`FOLDED`] of them they are folded into sums, in a
//! transaction of one of the writers, so that readers add up few rows, however many runs have ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use tokio_postgres::Row;

use super::{
    codes,
    failed::Failed,
    session::Session,
    value::{bytes, int, text, uint, word},
};
use crate::{
    journal::{Dimension, Ending, Measure, TallyKey},
    store::{
        CountedRun, Grain,
        stats::{COSTLY, HOURS_KEPT_MS, Sums, decode_counts},
    },
};

/// The number of ended runs that are folded together.
pub const FOLDED: u64 = 256;

/// Drops the sums by hour (see [`codes::grain`]) from before a time. Each dimension (see
/// [`codes::dimension`]) is named, because the primary key has it before the time.
const DROP_HOURS: &str = "DELETE FROM stats WHERE grain = 0 AND of IN (0, 1, 2) AND at_ms < $1";

/// The ended runs that are not folded into the sums.
#[derive(Default)]
pub struct EndedRuns {
    count: AtomicU64,
    last_ms: AtomicU64,
}

impl EndedRuns {
    /// Adds some that are stored, or one that ended at a time.
    pub fn add_stored(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds one that ended at a time.
    pub fn add(&self, at_ms: u64) {
        self.last_ms.fetch_max(at_ms, Ordering::Relaxed);
        self.add_stored(1);
    }

    /// Returns the time of the last end if there are at least `enough`, and counts from 0 again: the
    /// caller folds them.
    pub fn take(&self, enough: u64) -> Option<(u64, u64)> {
        let count = self.count.load(Ordering::Relaxed);
        let taken = count >= enough
            && self.count.compare_exchange(count, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        taken.then(|| (count, self.last_ms.load(Ordering::Relaxed)))
    }
}

/// Folds the new rows into the sums, and drops sums by hour that are too old.
pub fn fold(db: &Session, now_ms: u64) -> Result<(), Failed> {
    fold_all(db)?;
    let oldest = int(now_ms.saturating_sub(HOURS_KEPT_MS));
    db.execute(DROP_HOURS, &[&oldest]).map(drop)
}

/// Removes a run from the most expensive ones. Its counts stay in the sums, which name no run.
pub fn forget_run(db: &Session, run: u64) -> Result<(), Failed> {
    fold_all(db)?;
    db.execute("DELETE FROM stats_costly WHERE run = $1", &[&int(run)]).map(drop)
}

/// Removes the sums of a blueprint, an agent or a model.
pub fn forget_name(db: &Session, name: &str) -> Result<(), Failed> {
    fold_all(db)?;
    db.execute("DELETE FROM stats_costly WHERE blueprint = $1", &[&name.as_bytes()])?;
    db.execute("DELETE FROM stats WHERE name = $1", &[&name.as_bytes()]).map(drop)
}

/// Folds the new rows into the sums: they have the numbers of their runs.
fn fold_all(db: &Session) -> Result<(), Failed> {
    // Another lane may do the same. It would add to sums as they were before.
    db.batch("LOCK TABLE stats_costly IN SHARE ROW EXCLUSIVE MODE")?;
    let new = db.query("DELETE FROM stats_new RETURNING body", &[])?;
    write(db, sums_of(&new)?)
}

/// Returns the sums of the rows that were not folded yet.
pub fn unfolded(db: &Session) -> Result<Sums, Failed> {
    sums_of(&db.query("SELECT body FROM stats_new", &[])?)
}

/// Returns the names of all sums, and of what was not folded yet.
pub fn names(db: &Session) -> Result<BTreeSet<String>, Failed> {
    let known = db.query("SELECT DISTINCT name FROM stats", &[])?;
    let mut names: BTreeSet<String> =
        known.iter().map(|row| text(row, 0)).collect::<Result<_, Failed>>()?;
    names.extend(unfolded(db)?.rows.into_keys().map(|(_, key)| key.name));
    Ok(names)
}

fn sums_of(rows: &[Row]) -> Result<Sums, Failed> {
    let mut sums = Sums::default();
    for row in rows {
        if let Some(counted) = decode_counts::<CountedRun>(bytes(row, 0)?) {
            sums.add(&counted);
        }
    }
    Ok(sums)
}

fn write(db: &Session, sums: Sums) -> Result<(), Failed> {
    if !sums.rows.is_empty() {
        let mut keys = Keys::default();
        sums.rows.keys().for_each(|(grain, key)| keys.add(*grain, key));
        let mut known = known(db, &keys)?;
        let bodies: Vec<Vec<u8>> = sums
            .rows
            .iter()
            .map(|((grain, key), more)| {
                let mut sum = known.remove(&place(*grain, key)).unwrap_or_default();
                sum.add(more);
                postcard::to_allocvec(&sum).expect("counts are plain data")
            })
            .collect();
        let Keys { grains, ofs, ats, names, endings } = &keys;
        db.execute(PUT, &[grains, ofs, ats, names, endings, &bodies])?;
    }
    let all = || sums.costly.iter();
    let days: Vec<i64> = all().map(|((day_ms, _), _)| int(*day_ms)).collect();
    if days.is_empty() {
        return Ok(());
    }
    let runs: Vec<i64> = all().map(|(_, it)| int(it.run)).collect();
    let created: Vec<i64> = all().map(|(_, it)| int(it.created_ms)).collect();
    let blueprints: Vec<&[u8]> = all().map(|(_, it)| it.blueprint.as_bytes()).collect();
    let tokens: Vec<i64> = all().map(|(_, it)| int(it.tokens.min(MOST))).collect();
    let nano_usd: Vec<i64> = all().map(|(_, it)| int(it.nano_usd.min(MOST))).collect();
    db.execute(ADD, &[&days, &runs, &created, &blueprints, &tokens, &nano_usd])?;
    db.execute(TRIM, &[&days, &i64::from(COSTLY)]).map(drop)
}

/// The maximum usage of a run that is kept, 2^60.
const MOST: u64 = 1 << 60;

/// The keys of sums, a column each.
#[derive(Default)]
struct Keys {
    grains: Vec<i16>,
    ofs: Vec<i16>,
    ats: Vec<i64>,
    names: Vec<Vec<u8>>,
    endings: Vec<i16>,
}

impl Keys {
    fn add(&mut self, grain: Grain, key: &TallyKey) {
        self.grains.push(codes::grain(grain));
        self.ofs.push(codes::dimension(key.of));
        self.ats.push(int(key.hour_ms));
        self.names.push(key.name.clone().into_bytes());
        self.endings.push(codes::ending(key.ending));
    }
}

/// The key of a sum, as it is stored.
type Place = (i16, i16, u64, String, Ending);

fn place(grain: Grain, key: &TallyKey) -> Place {
    let of: Dimension = key.of;
    (codes::grain(grain), codes::dimension(of), key.hour_ms, key.name.clone(), key.ending)
}

/// Returns the stored sums with some keys.
fn known(db: &Session, keys: &Keys) -> Result<BTreeMap<Place, Measure>, Failed> {
    let Keys { grains, ofs, ats, names, endings } = keys;
    let mut known = BTreeMap::new();
    for row in db.query(KNOWN, &[grains, ofs, ats, names, endings])? {
        let place = (
            uint::<i16>(&row, 0)?,
            uint::<i16>(&row, 1)?,
            uint(&row, 2)?,
            text(&row, 3)?,
            word(&row, 4, codes::ending_of)?,
        );
        if let Some(measure) = decode_counts(bytes(&row, 5)?) {
            known.insert(place, measure);
        }
    }
    Ok(known)
}

const KNOWN: &str = "
    SELECT s.grain, s.of, s.at_ms, s.name, s.ending, s.body
    FROM unnest($1::smallint[], $2::smallint[], $3::bigint[], $4::bytea[], $5::smallint[])
         AS k (grain, of, at_ms, name, ending)
    JOIN stats s ON s.grain = k.grain AND s.of = k.of AND s.at_ms = k.at_ms AND s.name = k.name
                AND s.ending = k.ending";

const PUT: &str = "
    INSERT INTO stats (grain, of, at_ms, name, ending, body)
    SELECT * FROM unnest(
        $1::smallint[], $2::smallint[], $3::bigint[], $4::bytea[], $5::smallint[], $6::bytea[])
    ON CONFLICT (grain, of, at_ms, name, ending) DO UPDATE SET body = excluded.body";

const ADD: &str = "
    INSERT INTO stats_costly (day_ms, run, created_ms, blueprint, tokens, nano_usd)
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[])
    ON CONFLICT (day_ms, run) DO UPDATE SET
        tokens = least(stats_costly.tokens + excluded.tokens, 1::bigint << 60),
        nano_usd = least(stats_costly.nano_usd + excluded.nano_usd, 1::bigint << 60)";

const TRIM: &str = "
    DELETE FROM stats_costly c
    USING (SELECT day_ms, run,
                  row_number() OVER (PARTITION BY day_ms
                                     ORDER BY nano_usd DESC, tokens DESC, run DESC) AS place
           FROM stats_costly WHERE day_ms = ANY ($1)) r
    WHERE r.place > $2 AND c.day_ms = r.day_ms AND c.run = r.run";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_runs_are_taken_once_when_there_are_enough() {
        let ended = EndedRuns::default();
        ended.add_stored(2);
        ended.add(50);
        assert_eq!(ended.take(4), None);
        ended.add(40);
        assert_eq!((ended.take(4), ended.take(1)), (Some((4, 50)), None));
    }
}
