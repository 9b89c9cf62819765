//! Lists of runs: the rows that an index finds, in the order of the list.
//!
//! | the filter has | the rows are found by |
//! |---|---|
//! | words | the index of words for ended runs, and every open run |
//! | the value of a tag | `run_tags` |
//! | a run that called them | `runs_parent` |
//! | open statuses | `runs_status`, one by one |
//! | a blueprint | `runs_blueprint` |
//! | a subject | `runs_principal` |
//! | other statuses without `completed` | `runs_status`, one by one |
//! | the beginning of an id, or nothing of these | `runs_created` |
//!
//! Times bound the range of each index but that of words. All other conditions are checked row by row
//! ([`Pick`]).

use rusqlite::{Connection, Row, params_from_iter, types::Value};

use super::{
    error::is_of_a_row,
    header, run_index,
    value::{int, limit},
};
use crate::{
    protocol::RunId,
    store::{
        Header, RunFilter, RunPage, RunStatus,
        run_filter::{Pick, Sought},
    },
};

/// Returns a page of runs, newest first.
pub(super) fn page(conn: &Connection, filter: &RunFilter) -> rusqlite::Result<RunPage> {
    let queries = queries(filter);
    let mut statements = queries
        .iter()
        .map(|query| conn.prepare_cached(&query.sql))
        .collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::with_capacity(queries.len());
    for (statement, query) in statements.iter_mut().zip(&queries) {
        rows.push(statement.query_map(params_from_iter(&query.values), header::read)?);
    }
    let by_number = filter.is_by_number();
    let rank = |header: &Header| match by_number {
        true => RunId::new(header.num, 0),
        false => header.id(),
    };
    let mut heads = rows.iter_mut().map(next).collect::<Result<Vec<_>, _>>()?;
    let mut pick = Pick::new(filter);
    loop {
        let best =
            (0..heads.len()).filter_map(|place| Some((rank(heads[place].as_ref()?), place))).max();
        let Some((_, place)) = best else { break };
        let after = next(&mut rows[place])?;
        let Some(header) = std::mem::replace(&mut heads[place], after) else { break };
        if !pick.take(&header) {
            break;
        }
    }
    Ok(pick.done())
}

/// Returns the next readable row. A damaged one is logged and skipped, so that it does not hide the
/// others.
fn next<F>(rows: &mut rusqlite::MappedRows<'_, F>) -> rusqlite::Result<Option<Header>>
where
    F: FnMut(&Row<'_>) -> rusqlite::Result<Header>,
{
    loop {
        match rows.next() {
            Some(Err(error)) if is_of_a_row(&error) => {
                tracing::error!(%error, "a damaged row is left out; `moonswarm doctor --deep` lists all");
            }
            Some(row) => return row.map(Some),
            None => return Ok(None),
        }
    }
}

/// A query whose rows are in the order of the list.
struct Query {
    sql: String,
    values: Vec<Value>,
}

fn queries(filter: &RunFilter) -> Vec<Query> {
    let sought = filter.sought();
    if let Some(Sought::Words(words)) = &sought {
        return match words.is_empty() {
            true => Vec::new(),
            false => vec![ended_with(filter, run_index::matching(words)), open_by_number(filter)],
        };
    }
    let of = |index: &str, column: &str, value: Value| ranged(filter, index, Some((column, value)));
    let has_value = |tag: &&crate::protocol::TagIs| tag.value.is_some();
    let (open, ended): (Vec<RunStatus>, Vec<RunStatus>) =
        filter.status.iter().partition(|status| !status.is_ended());
    let by_status = |all: &[RunStatus]| {
        let mut words: Vec<_> = all.iter().map(|status| status.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        let query = |word: &str| of("runs_status", "status", word.to_owned().into());
        words.into_iter().map(query).collect()
    };
    if let Some(tag) = filter.tags.iter().find(has_value) {
        vec![tagged(filter, &tag.name, tag.value.as_deref().unwrap_or_default())]
    } else if let Some(parent) = filter.parent {
        vec![of("runs_parent", "parent_run", int(parent).into())]
    } else if !open.is_empty() && ended.is_empty() {
        by_status(&open)
    } else if let Some(blueprint) = &filter.blueprint {
        vec![of("runs_blueprint", "blueprint", blueprint.clone().into())]
    } else if let Some(subject) = &filter.started_by {
        vec![of("runs_principal", "principal", subject.clone().into())]
    } else if !filter.status.is_empty() && !ended.contains(&RunStatus::Completed) {
        by_status(&filter.status)
    } else {
        vec![ranged(filter, "runs_created", None)]
    }
}

/// Returns the query over an index that ends with the time of creation.
fn ranged(filter: &RunFilter, index: &str, of: Option<(&str, Value)>) -> Query {
    let columns = header::columns!();
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    if let Some((column, value)) = of {
        conditions.push(format!("{column} = ?"));
        values.push(value);
        if index == "runs_status" {
            // The condition of the partial index; the planner needs it verbatim.
            conditions.push("status <> 'completed'".to_owned());
        }
    }
    within(filter, "created_ms", "num", &mut conditions, &mut values);
    let conditions = match conditions.is_empty() {
        true => String::new(),
        false => format!("WHERE {}", conditions.join(" AND ")),
    };
    let sql = format!(
        "SELECT {columns} FROM runs INDEXED BY {index} {conditions}
         ORDER BY created_ms DESC, num DESC LIMIT ?"
    );
    values.push(limit(look(filter)).into());
    Query { sql, values }
}

/// Returns the query over the runs with a tag.
fn tagged(filter: &RunFilter, name: &str, value: &str) -> Query {
    let mut conditions = vec!["t.name = ?".to_owned(), "t.value = ?".to_owned()];
    let mut values: Vec<Value> = vec![name.to_owned().into(), value.to_owned().into()];
    within(filter, "t.created_ms", "t.run", &mut conditions, &mut values);
    let sql = format!(
        "SELECT {} FROM run_tags t CROSS JOIN runs r ON r.num = t.run WHERE {}
         ORDER BY t.created_ms DESC, t.run DESC LIMIT ?",
        qualified(),
        conditions.join(" AND ")
    );
    values.push(limit(look(filter)).into());
    Query { sql, values }
}

/// Returns the query over the ended runs with words, by number.
fn ended_with(filter: &RunFilter, words: String) -> Query {
    let (before, values) = numbered(filter, words.into());
    let sql = format!(
        "SELECT {} FROM run_text f CROSS JOIN runs r ON r.num = f.rowid
         WHERE f.run_text MATCH ? {} ORDER BY f.rowid DESC LIMIT ?",
        qualified(),
        before.replace("num", "f.rowid")
    );
    Query { sql, values }
}

/// Returns the query over all open runs, by number. There are few, so they are sorted.
fn open_by_number(filter: &RunFilter) -> Query {
    let open = RunStatus::ALL.into_iter().filter(|status| !status.is_ended());
    let open: Vec<_> = open.map(|status| status.as_str()).collect();
    let open = serde_json::to_string(&open).expect("words are plain data");
    let (before, values) = numbered(filter, open.into());
    let sql = format!(
        "SELECT {} FROM (
             SELECT num AS n FROM runs INDEXED BY runs_status
             WHERE status <> 'completed' AND status IN (SELECT value FROM json_each(?)) {before}
             ORDER BY num DESC LIMIT ?
         ) o CROSS JOIN runs r ON r.num = o.n ORDER BY o.n DESC",
        qualified()
    );
    Query { sql, values }
}

fn numbered(filter: &RunFilter, first: Value) -> (String, Vec<Value>) {
    let mut values = vec![first];
    let mut condition = String::new();
    if let Some(before) = filter.before {
        condition.push_str("AND num < ?");
        values.push(int(before.num()).into());
    }
    values.push(limit(look(filter)).into());
    (condition, values)
}

/// Adds the cursor and the range of creation. The beginning of an id is a range of creation too.
fn within(
    filter: &RunFilter,
    created: &str,
    num: &str,
    conditions: &mut Vec<String>,
    values: &mut Vec<Value>,
) {
    if let Some(before) = filter.before {
        conditions.push(format!("({created}, {num}) < (?, ?)"));
        values.extend([int(before.created_ms()).into(), int(before.num()).into()]);
    }
    let of_id = match filter.sought() {
        Some(Sought::Id(prefix)) => RunId::created_within(&prefix),
        _ => None,
    };
    let (from, upto) = of_id.unwrap_or((0, u64::MAX));
    let from = from.max(filter.since_ms.unwrap_or(0));
    let upto = upto.min(filter.until_ms.map_or(u64::MAX, |until| until.saturating_sub(1)));
    if from > 0 {
        conditions.push(format!("{created} >= ?"));
        values.push(int(from).into());
    }
    if upto < u64::MAX {
        conditions.push(format!("{created} <= ?"));
        values.push(int(upto).into());
    }
}

/// One row more than is looked at shows that there are more.
fn look(filter: &RunFilter) -> usize {
    filter.look.map_or(usize::MAX, |look| look.saturating_add(1))
}

/// The columns of a header, of the table `r`.
fn qualified() -> String {
    let columns = header::columns!().split(", ").map(|column| format!("r.{column}"));
    columns.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::TagIs;

    /// The plan of each query of a filter.
    fn plans(filter: &RunFilter) -> Vec<String> {
        let mut conn = Connection::open_in_memory().unwrap();
        crate::store::sqlite::format::migrate(&mut conn, 0).unwrap();
        let plan = |query: Query| {
            let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql)).unwrap();
            let values = params_from_iter(query.values);
            let lines = statement.query_map(values, |row| row.get::<_, String>(3)).unwrap();
            lines.map(Result::unwrap).collect::<Vec<_>>().join("; ")
        };
        queries(filter).into_iter().map(plan).collect()
    }

    #[test]
    fn every_list_reads_an_index_in_the_order_of_the_list() {
        let before = Some(RunId::new(9, 9));
        let all = || RunFilter {
            limit: 5,
            look: Some(9),
            before,
            since_ms: Some(3),
            ..RunFilter::default()
        };
        let tag = TagIs { name: "a".into(), value: Some("b".into()) };
        let failed = vec![RunStatus::Failed, RunStatus::Running];
        for (filter, index) in [
            (all(), "INDEX runs_created"),
            (RunFilter { blueprint: Some("b".into()), ..all() }, "INDEX runs_blueprint"),
            (RunFilter { started_by: Some("b".into()), ..all() }, "INDEX runs_principal"),
            (RunFilter { parent: Some(1), ..all() }, "INDEX runs_parent"),
            (RunFilter { status: failed, ..all() }, "INDEX runs_status"),
            (RunFilter { tags: vec![tag], ..all() }, "SEARCH t USING PRIMARY KEY"),
            (RunFilter { text: Some("run_abc".into()), ..all() }, "INDEX runs_created"),
        ] {
            for plan in plans(&filter) {
                assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{plan}");
            }
        }
        let [ended, open] =
            plans(&RunFilter { text: Some("a b*".into()), ..all() }).try_into().unwrap();
        assert!(ended.contains("VIRTUAL TABLE") && !ended.contains("TEMP B-TREE"), "{ended}");
        assert!(open.contains("COVERING INDEX runs_status"), "{open}");
    }
}
