//! The table `tasks`: open tasks.

use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::{
    error::in_row,
    prepared::Prepared,
    value::{int, json, json_or_null, limit, sound, uint, uint_or_null, word},
};
use crate::store::{OpenTasksRow, QueuedRow, TaskFilter, TaskHold, TaskPhase, TaskRow};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "run, step, attempt, epoch, agent, operator, kind, queue, phase, scheduled_ms, opened_ms, \
         worker, deadline_ms, lease_ms, summary, prompt, question, graces"
    };
}

const PUT: &str = concat!(
    "INSERT OR REPLACE INTO tasks (",
    columns!(),
    ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
);
const HOLD: &str = "
    UPDATE tasks SET phase = ?3, worker = ?4, deadline_ms = ?5, lease_ms = ?6, graces = ?7
    WHERE run = ?1 AND step = ?2";
const CLOSE: &str = "DELETE FROM tasks WHERE run = ?1 AND step = ?2";

/// Writes single tasks for the batches of a group.
pub struct TaskWriter<'c> {
    put: Prepared<'c>,
    hold: Prepared<'c>,
    close: Prepared<'c>,
}

impl<'c> TaskWriter<'c> {
    /// Creates a writer over the connection of the group.
    pub fn new(conn: &'c Connection) -> Self {
        Self {
            put: Prepared::new(conn, PUT),
            hold: Prepared::new(conn, HOLD),
            close: Prepared::new(conn, CLOSE),
        }
    }

    /// Inserts or replaces an open task.
    pub fn put(&mut self, task: &TaskRow) -> rusqlite::Result<()> {
        let row = params![
            int(task.run),
            task.step,
            task.attempt,
            task.epoch,
            task.agent,
            task.operator,
            task.kind,
            task.queue,
            task.phase.as_str(),
            int(task.scheduled_ms),
            int(task.opened_ms),
            task.worker,
            task.deadline_ms.map(int),
            task.lease_ms.map(int),
            task.summary,
            task.prompt,
            task.question,
            task.graces,
        ];
        self.put.get()?.execute(row).map(drop)
    }

    /// Changes who has an open task, and until when.
    pub fn hold(&mut self, hold: &TaskHold) -> rusqlite::Result<()> {
        let row = params![
            int(hold.run),
            hold.step,
            hold.phase.as_str(),
            hold.worker,
            hold.deadline_ms.map(int),
            hold.lease_ms.map(int),
            hold.graces,
        ];
        self.hold.get()?.execute(row).map(drop)
    }

    /// Removes an ended task.
    pub fn close(&mut self, run: u64, step: u32) -> rusqlite::Result<()> {
        self.close.get()?.execute(params![int(run), step]).map(drop)
    }
}

/// Removes all tasks of a run.
pub fn close_all(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM tasks WHERE run = ?1")?.execute([int(run)]).map(drop)
}

/// Returns an open task.
pub fn one(conn: &Connection, run: u64, step: u32) -> rusqlite::Result<Option<TaskRow>> {
    conn.prepare_cached(concat!("SELECT ", columns!(), " FROM tasks WHERE run = ?1 AND step = ?2"))?
        .query_row(params![int(run), step], read)
        .optional()
}

/// Returns the open tasks of queues, counted by queue and holder.
pub fn queued(conn: &Connection, most: usize) -> rusqlite::Result<Vec<QueuedRow>> {
    conn.prepare_cached(
        "SELECT queue, CASE phase WHEN 'pending' THEN NULL ELSE coalesce(worker, '') END AS holder,
                count(*), min(scheduled_ms)
         FROM tasks WHERE queue IS NOT NULL GROUP BY queue, holder ORDER BY queue, holder LIMIT ?1",
    )?
    .query_map([limit(most)], |row| {
        Ok(QueuedRow {
            queue: row.get(0)?,
            worker: row.get(1)?,
            tasks: uint(row, 2)?,
            oldest_ms: uint(row, 3)?,
        })
    })?
    .collect()
}

/// Returns the open tasks, counted by operator and kind.
pub fn open(conn: &Connection, most: usize) -> rusqlite::Result<Vec<OpenTasksRow>> {
    conn.prepare_cached(
        "SELECT operator, kind, count(*), min(scheduled_ms)
         FROM tasks GROUP BY operator, kind ORDER BY operator, kind LIMIT ?1",
    )?
    .query_map([limit(most)], |row| {
        Ok(OpenTasksRow {
            operator: row.get(0)?,
            kind: row.get(1)?,
            tasks: uint(row, 2)?,
            oldest_ms: uint(row, 3)?,
        })
    })?
    .collect()
}

/// Returns open tasks, oldest first.
pub fn list(conn: &Connection, filter: &TaskFilter) -> rusqlite::Result<Vec<TaskRow>> {
    let mut conditions = Vec::new();
    let mut values: Vec<rusqlite::types::Value> = Vec::new();
    if let Some(run) = filter.run {
        conditions.push("run = ?");
        values.push(int(run).into());
    }
    if let Some((run, step)) = filter.after {
        conditions.push("(run, step) > (?, ?)");
        values.extend([int(run).into(), i64::from(step).into()]);
    }
    if let Some(operator) = &filter.operator {
        conditions.push("operator = ?");
        values.push(operator.clone().into());
    }
    if let Some(kind) = &filter.kind {
        conditions.push("kind = ?");
        values.push(kind.clone().into());
    }
    let mut sql = concat!("SELECT ", columns!(), " FROM tasks").to_owned();
    if !conditions.is_empty() {
        sql.push_str(" WHERE ");
        sql.push_str(&conditions.join(" AND "));
    }
    sql.push_str(" ORDER BY run, step LIMIT ?");
    values.push(limit(filter.limit).into());
    sound(conn.prepare_cached(&sql)?.query_map(params_from_iter(values), read)?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<TaskRow> {
    let what = || format!("open task {}/{}", row.get(0).unwrap_or(0), row.get(1).unwrap_or(0));
    fields(row, &what).map_err(in_row(what))
}

fn fields(row: &Row<'_>, what: &impl Fn() -> String) -> rusqlite::Result<TaskRow> {
    Ok(TaskRow {
        run: uint(row, 0)?,
        step: row.get(1)?,
        attempt: row.get(2)?,
        epoch: row.get(3)?,
        agent: row.get(4)?,
        operator: row.get(5)?,
        kind: row.get(6)?,
        queue: row.get(7)?,
        phase: word(row, 8, TaskPhase::parse)?,
        scheduled_ms: uint(row, 9)?,
        opened_ms: uint(row, 10)?,
        worker: row.get(11)?,
        deadline_ms: uint_or_null(row, 12)?,
        lease_ms: uint_or_null(row, 13)?,
        summary: row.get(14)?,
        prompt: json(row, 15, what)?,
        question: json_or_null(row, 16, what)?,
        graces: row.get(17)?,
    })
}
