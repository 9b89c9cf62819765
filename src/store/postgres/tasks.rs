//! The table `tasks`: open tasks.

use tokio_postgres::{Row, types::ToSql};

use super::{
    codes,
    failed::Failed,
    session::Session,
    value::{
        in_row, int, json, json_or_null, limit, sound, text, text_or_null, uint, uint_or_null, word,
    },
};
use crate::store::{OpenTasksRow, QueuedRow, TaskFilter, TaskRow};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "run, step, attempt, epoch, agent, operator, kind, queue, phase, scheduled_ms, opened_ms, \
         worker, deadline_ms, lease_ms, summary, prompt, question, graces"
    };
}

/// Returns an open task.
pub fn one(db: &Session, run: u64, step: u32) -> Result<Option<TaskRow>, Failed> {
    let sql = concat!("SELECT ", columns!(), " FROM tasks WHERE run = $1 AND step = $2");
    let row = db.one(sql, &[&int(run), &i64::from(step)])?;
    row.as_ref().map(read).transpose()
}

/// Returns the open tasks of queues, counted by queue and holder.
pub fn queued(db: &Session, most: usize) -> Result<Vec<QueuedRow>, Failed> {
    let sql = "
        SELECT queue, CASE phase WHEN 0 THEN NULL ELSE coalesce(worker, '') END AS holder,
               count(*), min(scheduled_ms)
        FROM tasks WHERE queue IS NOT NULL
        GROUP BY queue, holder ORDER BY queue, holder NULLS FIRST LIMIT $1";
    let read = |row: &Row| {
        Ok(QueuedRow {
            queue: text(row, 0)?,
            worker: text_or_null(row, 1)?,
            tasks: uint(row, 2)?,
            oldest_ms: uint(row, 3)?,
        })
    };
    db.query(sql, &[&limit(most)])?.iter().map(read).collect()
}

/// Returns the open tasks, counted by operator and kind.
pub fn open(db: &Session, most: usize) -> Result<Vec<OpenTasksRow>, Failed> {
    let sql = "
        SELECT operator, kind, count(*), min(scheduled_ms) FROM tasks
        GROUP BY operator, kind ORDER BY operator, kind LIMIT $1";
    let read = |row: &Row| {
        Ok(OpenTasksRow {
            operator: text(row, 0)?,
            kind: text(row, 1)?,
            tasks: uint(row, 2)?,
            oldest_ms: uint(row, 3)?,
        })
    };
    db.query(sql, &[&limit(most)])?.iter().map(read).collect()
}

/// Returns open tasks, oldest first.
pub fn list(db: &Session, filter: &TaskFilter) -> Result<Vec<TaskRow>, Failed> {
    let (run, step) = filter.after.map_or((-1, 0_i64), |(run, step)| (int(run), step.into()));
    let (first, last) = filter.run.map_or((0, i64::MAX), |run| (int(run), int(run)));
    let operator = filter.operator.as_deref().map(str::as_bytes);
    let kind = filter.kind.as_deref().map(str::as_bytes);
    let params: [&(dyn ToSql + Sync); 7] =
        [&first, &last, &run, &step, &operator, &kind, &limit(filter.limit)];
    sound(db.query(LIST, &params)?.iter().map(read))
}

/// Runs are a range, so that the tasks of one run and those of all are found by one statement.
pub(super) const LIST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM tasks
    WHERE run >= $1 AND run <= $2 AND (run, step) > ($3, $4)
      AND ($5::bytea IS NULL OR operator = $5) AND ($6::bytea IS NULL OR kind = $6)
    ORDER BY run, step LIMIT $7"
);

fn read(row: &Row) -> Result<TaskRow, Failed> {
    let number = |column| uint::<u64>(row, column).unwrap_or_default();
    fields(row).map_err(in_row(|| format!("open task {}/{}", number(0), number(1))))
}

fn fields(row: &Row) -> Result<TaskRow, Failed> {
    Ok(TaskRow {
        run: uint(row, 0)?,
        step: uint(row, 1)?,
        attempt: uint(row, 2)?,
        epoch: uint(row, 3)?,
        agent: text(row, 4)?,
        operator: text(row, 5)?,
        kind: text(row, 6)?,
        queue: text_or_null(row, 7)?,
        phase: word(row, 8, codes::phase_of)?,
        scheduled_ms: uint(row, 9)?,
        opened_ms: uint(row, 10)?,
        worker: text_or_null(row, 11)?,
        deadline_ms: uint_or_null(row, 12)?,
        lease_ms: uint_or_null(row, 13)?,
        summary: text_or_null(row, 14)?,
        prompt: json(row, 15)?,
        question: json_or_null(row, 16)?,
        graces: uint(row, 17)?,
    })
}
