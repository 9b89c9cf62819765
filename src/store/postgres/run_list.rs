//! Lists of runs: the rows that an index finds, in the order of the list.
//!
//! | the filter has | the rows are found by |
//! |---|---|
//! | words | the index of words for ended runs, and every open run |
//! | the value of a tag | `run_tags` |
//! | a run that called them | `runs_parent` |
//! | open statuses | `runs_status`, merged |
//! | a blueprint | `runs_blueprint` |
//! | a subject | `runs_principal` |
//! | other statuses without `completed` | `runs_status`, merged |
//! | the beginning of an id, or nothing of these | `runs_created` |
//!
//! Times bound the range of each index but that of words. All other conditions are checked row by row
//! ([`Pick`]), on rows that come in growing portions: each is one statement, which goes on after the
//! last row of the one before.

use tokio_postgres::{Row, types::ToSql};

use super::{
    codes,
    failed::Failed,
    header,
    session::Session,
    value::{int, limit, number},
    words,
};
use crate::{
    protocol::{RunId, TagIs},
    store::{
        RunFilter, RunPage, RunStatus, StoreError,
        run_filter::{Pick, Sought},
    },
};

/// The maximum number of rows of a portion.
const PORTION: usize = 1_024;

/// Returns a page of runs, newest first.
pub(super) fn page(db: &Session, filter: &RunFilter) -> Result<RunPage, Failed> {
    let Some(query) = Query::of(filter) else { return Ok(RunPage::default()) };
    let mut pick = Pick::new(filter);
    // One row more than is looked at shows that there are more.
    let mut left = filter.look.map_or(usize::MAX, |look| look.saturating_add(1));
    let mut portion = filter.limit.saturating_add(1).min(PORTION);
    let mut before = filter.before.map_or((i64::MAX, i64::MAX), place);
    while left > 0 {
        portion = portion.min(left);
        let rows = query.rows(db, before, portion)?;
        for row in &rows {
            before = (number(row, CREATED)?, number(row, NUM)?);
            match header::read(row) {
                Ok(header) if !pick.take(&header) => return Ok(pick.done()),
                Ok(_) => left -= 1,
                Err(Failed::Store(error @ StoreError::Damaged { .. })) => {
                    tracing::error!(%error, "a damaged row is left out; `moonswarm doctor --deep` lists all");
                }
                Err(error) => return Err(error),
            }
        }
        if rows.len() < portion {
            break;
        }
        portion = portion.saturating_mul(4).min(PORTION);
    }
    Ok(pick.done())
}

/// Returns the place of a run in a list.
fn place(run: RunId) -> (i64, i64) {
    (int(run.created_ms()), int(run.num()))
}

/// The place of the run's number among the columns of a header.
const NUM: usize = 0;
/// The place of the time of its creation.
const CREATED: usize = 6;

/// A statement whose rows are in the order of the list.
///
/// Its first parameters are the time and the number of the run before, the range of creation, and
/// the number of rows.
struct Query {
    sql: String,
    from: i64,
    upto: i64,
    values: Vec<Box<dyn ToSql + Sync>>,
}

impl Query {
    /// Returns the statement for a filter; `None` if nothing can be found.
    fn of(filter: &RunFilter) -> Option<Self> {
        let (from, upto) = created_within(filter);
        let query = |sql, values| Self { sql, from: int(from), upto: int(upto), values };
        if let Some(Sought::Words(sought)) = filter.sought() {
            let values = values([words::query_of_runs(&sought)]);
            return (!sought.is_empty()).then(|| query(with_words(), values));
        }
        let (open, ended): (Vec<RunStatus>, Vec<RunStatus>) =
            filter.status.iter().partition(|status| !status.is_ended());
        let by_status = |all: &[RunStatus]| {
            let mut codes: Vec<i16> = all.iter().map(|it| codes::status(*it)).collect();
            codes.sort_unstable();
            codes.dedup();
            query(merged(codes.len()), values(codes))
        };
        let has_value = |tag: &&TagIs| tag.value.is_some();
        Some(if let Some(tag) = filter.tags.iter().find(has_value) {
            let value = tag.value.clone().unwrap_or_default();
            query(tagged(), values([tag.name.clone().into_bytes(), value.into_bytes()]))
        } else if let Some(parent) = filter.parent {
            query(ranged("parent_run = $6"), values([int(parent)]))
        } else if !open.is_empty() && ended.is_empty() {
            by_status(&open)
        } else if let Some(blueprint) = &filter.blueprint {
            query(ranged(&is_named("blueprint")), values([blueprint.clone().into_bytes()]))
        } else if let Some(subject) = &filter.started_by {
            query(ranged(&is_named("principal")), values([subject.clone().into_bytes()]))
        } else if !filter.status.is_empty() && !ended.contains(&RunStatus::Completed) {
            by_status(&filter.status)
        } else {
            query(ranged("true"), Vec::new())
        })
    }

    fn rows(&self, db: &Session, before: (i64, i64), portion: usize) -> Result<Vec<Row>, Failed> {
        let portion = limit(portion);
        let mut params: Vec<&(dyn ToSql + Sync)> =
            vec![&before.0, &before.1, &self.from, &self.upto, &portion];
        params.extend(self.values.iter().map(|value| &**value));
        db.query(&self.sql, &params)
    }
}

fn values<T: ToSql + Sync + 'static>(
    all: impl IntoIterator<Item = T>,
) -> Vec<Box<dyn ToSql + Sync>> {
    all.into_iter().map(|value| Box::new(value) as Box<dyn ToSql + Sync>).collect()
}

/// Returns the range of creation. The beginning of an id is a range of creation too.
fn created_within(filter: &RunFilter) -> (u64, u64) {
    let of_id = match filter.sought() {
        Some(Sought::Id(prefix)) => RunId::created_within(&prefix),
        _ => None,
    };
    let (from, upto) = of_id.unwrap_or((0, u64::MAX));
    let from = from.max(filter.since_ms.unwrap_or(0));
    (from, upto.min(filter.until_ms.map_or(u64::MAX, |until| until.saturating_sub(1))))
}

/// Returns the condition that a name is `$6`. The index has its first 512 bytes; a shorter name is not
/// compared again, so that the planner does not count the condition twice.
fn is_named(column: &str) -> String {
    format!(
        "substring({column} from 1 for 512) = substring($6::bytea from 1 for 512)
         AND (octet_length($6) < 512 OR {column} = $6)"
    )
}

/// Returns the statement over an index that ends with the time of creation.
fn ranged(condition: &str) -> String {
    let columns = header::columns!();
    format!(
        "SELECT {columns} FROM runs
         WHERE {condition} AND (created_ms, num) < ($1::bigint, $2::bigint)
           AND created_ms >= $3::bigint AND created_ms <= $4::bigint
         ORDER BY created_ms DESC, num DESC LIMIT $5::bigint"
    )
}

/// Returns the statement over the runs with one of some statuses, which are `$6` and so on.
fn merged(statuses: usize) -> String {
    // The condition of the partial index; the planner needs it verbatim.
    let one = |n: usize| format!("({})", ranged(&format!("status = ${n} AND status <> 5")));
    let all: Vec<String> = (6..6 + statuses).map(one).collect();
    match all.as_slice() {
        [one] => one.clone(),
        all => format!(
            "SELECT * FROM ({}) u ORDER BY created_ms DESC, num DESC LIMIT $5::bigint",
            all.join(" UNION ALL ")
        ),
    }
}

/// Returns the statement over the runs with a tag.
fn tagged() -> String {
    format!(
        "SELECT {} FROM (
             SELECT run, created_ms FROM run_tags
             WHERE name = $6 AND value = $7 AND (created_ms, run) < ($1::bigint, $2::bigint)
               AND created_ms >= $3::bigint AND created_ms <= $4::bigint
             ORDER BY created_ms DESC, run DESC LIMIT $5::bigint
         ) t JOIN runs r ON r.num = t.run ORDER BY t.created_ms DESC, t.run DESC",
        qualified()
    )
}

/// Returns the statement over the ended runs with words and all open runs, by number.
fn with_words() -> String {
    let (columns, qualified) = (header::columns!(), qualified());
    format!(
        "SELECT * FROM (
             (SELECT {qualified} FROM (
                  SELECT run FROM run_words WHERE words @@ $6::text::tsquery AND run < $2::bigint
                  ORDER BY run DESC LIMIT $5::bigint
              ) w JOIN runs r ON r.num = w.run)
             UNION ALL
             (SELECT {columns} FROM runs WHERE status < 5 AND num < $2::bigint
              ORDER BY num DESC LIMIT $5::bigint)
         ) u WHERE $1::bigint >= 0 AND $3::bigint >= 0 AND $4::bigint >= 0
         ORDER BY num DESC LIMIT $5::bigint"
    )
}

/// The columns of a header, of the table `r`.
fn qualified() -> String {
    let columns = header::columns!().split(", ").map(|column| format!("r.{column}"));
    columns.collect::<Vec<_>>().join(", ")
}

/// Returns the plan of the first portion of a list.
#[cfg(test)]
pub(super) fn plan(db: &Session, filter: &RunFilter) -> Result<String, Failed> {
    let mut query = Query::of(filter).expect("something can be found");
    query.sql.insert_str(0, "EXPLAIN (COSTS OFF) ");
    let before = filter.before.map_or((i64::MAX, i64::MAX), place);
    let lines = query.rows(db, before, filter.limit)?;
    let lines: Vec<String> = lines.iter().map(|line| line.get(0)).collect();
    Ok(lines.join("\n"))
}
