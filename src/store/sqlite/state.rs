//! The table `state`: values by scope and key, and the receipts of steps that changed them.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    error::{Unreadable, in_row},
    links, state_text,
    value::{int, json, uint, uint_or_null},
};
use crate::{
    protocol::{RunId, StoreOptions},
    store::{
        StateBatch, StateFilter, StateKey, StateRow, StoreError,
        change::{self, Changed, Plan, Planned},
    },
};

const COLUMNS: &str = "scope, key, revision, updated_ms, expires_ms, hints, value";

/// Writes a value, increments its revision and indexes it.
pub fn put(
    conn: &Connection,
    (scope, key): (&str, &str),
    value: &str,
    hints: &StoreOptions,
    expires_ms: Option<u64>,
    at_ms: u64,
) -> rusqlite::Result<()> {
    let said = (*hints != StoreOptions::default())
        .then(|| serde_json::to_string(hints).expect("hints are plain data"));
    let (id, revision): (i64, i64) = conn
        .prepare_cached(
            "INSERT INTO state (scope, key, revision, updated_ms, expires_ms, hints, value)
             VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6)
             ON CONFLICT (scope, key) DO UPDATE SET
                 revision = revision + 1, updated_ms = excluded.updated_ms,
                 expires_ms = excluded.expires_ms, hints = excluded.hints, value = excluded.value
             RETURNING id, revision",
        )?
        .query_row(params![scope, key, int(at_ms), expires_ms.map(int), said, value], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    state_text::put(conn, id, revision == 1, (scope, key), value)
}

/// Removes a value and its links.
pub fn delete(conn: &Connection, scope: &str, key: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2")?
        .execute([scope, key])
        .map(drop)
}

/// Returns the total bytes of all keys and values of a scope, without reading them.
pub fn bytes(conn: &Connection, scope: &str) -> rusqlite::Result<u64> {
    conn.prepare_cached(
        "SELECT coalesce(sum(octet_length(key) + octet_length(value)), 0) FROM state
         WHERE scope = ?1",
    )?
    .query_row([scope], |row| uint(row, 0))
}

/// Returns one value, even if it has expired.
pub fn one(conn: &Connection, scope: &str, key: &str) -> rusqlite::Result<Option<StateRow>> {
    conn.prepare_cached(
        "SELECT scope, key, revision, updated_ms, expires_ms, hints, value
         FROM state WHERE scope = ?1 AND key = ?2",
    )?
    .query_row([scope, key], read)
    .optional()
}

/// Returns all values of a scope, sorted by key.
pub fn list(conn: &Connection, scope: &str) -> rusqlite::Result<Vec<StateRow>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM state WHERE scope = ?1 ORDER BY key"))?
        .query_map([scope], read)?
        .collect()
}

/// Returns a page of the keys of a scope, sorted. The values, which may be large, are not read.
pub fn page(conn: &Connection, filter: &StateFilter) -> rusqlite::Result<Vec<StateKey>> {
    let mut statement = conn.prepare_cached(
        "SELECT key, revision, updated_ms, expires_ms
         FROM state WHERE scope = ?1 AND key >= ?2 AND (?3 IS NULL OR key > ?3)
         ORDER BY key",
    )?;
    // One lower bound, so that the keys before the page are not read.
    let from = filter.after.as_deref().filter(|after| *after > filter.prefix.as_str());
    let mut rows =
        statement.query(params![filter.scope, from.unwrap_or(&filter.prefix), filter.after])?;
    let mut found = Vec::new();
    while found.len() < filter.limit
        && let Some(row) = rows.next()?
    {
        let row = listed(row, &filter.scope)?;
        if !row.key.starts_with(&filter.prefix) {
            break;
        }
        if row.is_live(filter.now_ms) {
            found.push(row);
        }
    }
    Ok(found)
}

fn listed(row: &Row<'_>, scope: &str) -> rusqlite::Result<StateKey> {
    let read = || -> rusqlite::Result<StateKey> {
        Ok(StateKey {
            key: row.get(0)?,
            revision: uint(row, 1)?,
            updated_ms: uint(row, 2)?,
            expires_ms: uint_or_null(row, 3)?,
        })
    };
    read().map_err(in_row(|| {
        let key = row.get::<_, String>(0).unwrap_or_else(|_| "?".to_owned());
        format!("state {key:?} of {scope}")
    }))
}

/// Removes all values of a run and of its operators, and the receipts of its steps.
pub fn delete_of(conn: &Connection, num: u64, run: RunId) -> rusqlite::Result<()> {
    let of = format!("run:{run}");
    let (first, last) = (format!("operator:{run}:"), format!("operator:{run};"));
    for table in ["state", "state_links"] {
        conn.prepare_cached(&format!("DELETE FROM {table} WHERE scope = ?1"))?.execute([&of])?;
        conn.prepare_cached(&format!("DELETE FROM {table} WHERE scope >= ?1 AND scope < ?2"))?
            .execute([&first, &last])?;
    }
    conn.prepare_cached("DELETE FROM state_receipts WHERE run = ?1")?.execute([int(num)]).map(drop)
}

/// Removes the values with the lifetime of a session.
pub fn end_session(conn: &Connection, session: &str) -> rusqlite::Result<()> {
    let scope = crate::protocol::Scope::Session(session.into()).to_string();
    conn.prepare_cached(
        // Hints are advisory: unreadable hints count as absent.
        "DELETE FROM state WHERE scope = ?1
         AND CASE WHEN json_valid(hints) THEN json_extract(hints, '$.lifetime') END = 'session'",
    )?
    .execute([scope])
    .map(drop)
}

/// Removes at most `rows` expired values.
pub fn expire(conn: &Connection, now_ms: u64, rows: usize) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM state WHERE id IN (
             SELECT id FROM state WHERE expires_ms IS NOT NULL AND expires_ms <= ?1
             ORDER BY expires_ms LIMIT ?2)",
    )?
    .execute(params![int(now_ms), super::value::limit(rows)])
    .map(drop)
}

/// Returns true if an expired value is still stored.
pub fn has_expired(conn: &Connection, now_ms: u64) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT 1 FROM state WHERE expires_ms IS NOT NULL AND expires_ms <= ?1 LIMIT 1",
    )?
    .exists([int(now_ms)])
}

/// Plans a batch, or refuses it. Returns `None` if it was already applied.
pub fn plan<E: From<StoreError> + From<rusqlite::Error>>(
    conn: &Connection,
    batch: &StateBatch,
) -> Result<Option<Plan>, E> {
    if let Some((run, step)) = batch.receipt
        && let Some(answers) = answered(conn, run, step)?
    {
        batch.answers.give(answers);
        return Ok(None);
    }
    change::plan(batch, |scope, key| Ok(one(conn, scope, key)?)).map(Some)
}

/// Writes a plan and stores its answers.
pub fn carry_out(conn: &Connection, batch: &StateBatch, plan: Plan) -> rusqlite::Result<()> {
    for write in plan.writes {
        match write {
            Planned::Put { scope, key, value, hints, expires_ms } => {
                put(conn, (&scope, &key), &value, &hints, expires_ms, batch.at_ms)?;
            }
            Planned::Delete { scope, key } => delete(conn, &scope, &key)?,
            Planned::Link { scope, from, to, relation, metadata } => {
                links::put(conn, &scope, (&from, &relation, &to), metadata.as_deref())?;
            }
            Planned::Unlink { scope, from, to, relation } => {
                links::delete(conn, &scope, (&from, &relation, &to))?;
            }
        }
    }
    if let Some((run, step)) = batch.receipt {
        let answer = serde_json::to_string(&plan.answers).expect("answers are plain data");
        conn.prepare_cached("INSERT INTO state_receipts (run, step, answer) VALUES (?1, ?2, ?3)")?
            .execute(params![int(run), step, answer])?;
    }
    batch.answers.give(plan.answers);
    Ok(())
}

/// Removes the receipt of a step.
pub fn forget_receipt(conn: &Connection, run: u64, step: u32) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM state_receipts WHERE run = ?1 AND step = ?2")?
        .execute(params![int(run), step])
        .map(drop)
}

fn answered(conn: &Connection, run: u64, step: u32) -> rusqlite::Result<Option<Vec<Changed>>> {
    let answer: Option<String> = conn
        .prepare_cached("SELECT answer FROM state_receipts WHERE run = ?1 AND step = ?2")?
        .query_row(params![int(run), step], |row| row.get(0))
        .optional()?;
    let read = answer.map(|answer| serde_json::from_str(&answer)).transpose();
    // Without the receipt, the step would be applied a second time.
    read.map_err(|error| {
        let what = format!("the answer to step {step} of run {run}");
        Unreadable { what, reason: error.to_string() }.into()
    })
}

/// Returns one value by its row id.
pub fn by_id(conn: &Connection, id: i64) -> rusqlite::Result<Option<StateRow>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM state WHERE id = ?1"))?
        .query_row([id], read)
        .optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<StateRow> {
    let text = |column| row.get::<_, String>(column).unwrap_or_else(|_| "?".to_owned());
    let what = || format!("state {:?} of {}", text(1), text(0));
    fields(row, &what).map_err(in_row(what))
}

fn fields(row: &Row<'_>, what: &impl Fn() -> String) -> rusqlite::Result<StateRow> {
    let hints: Option<String> = row.get(5)?;
    Ok(StateRow {
        scope: row.get(0)?,
        key: row.get(1)?,
        revision: uint(row, 2)?,
        updated_ms: uint(row, 3)?,
        expires_ms: uint_or_null(row, 4)?,
        // Hints are advisory: unreadable hints count as absent.
        hints: hints.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        value: json(row, 6, what)?,
    })
}
