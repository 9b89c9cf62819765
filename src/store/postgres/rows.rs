//! The rows that most transitions write: entries, headers and open tasks. Those of a group are folded
//! and written together, one statement for all rows of a kind.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    codes,
    session::Call,
    value::{bits, int},
    words,
};
use crate::store::{Header, RunWrite, TaskHold, TaskRow, Write};

/// The rows of a group that are not written yet.
#[derive(Default)]
pub struct Rows<'a> {
    entries: Entries,
    headers: BTreeMap<u64, Pending<'a>>,
    /// Runs whose tasks are all removed, before anything else is done with tasks.
    closed: BTreeSet<u64>,
    tasks: BTreeMap<(u64, u32), Task<'a>>,
}

#[derive(Default)]
struct Entries {
    run: Vec<i64>,
    seq: Vec<i64>,
    lsn: Vec<i64>,
    begins: Vec<bool>,
    entry: Vec<Vec<u8>>,
}

struct Pending<'a> {
    /// The last header, for what every write changes.
    last: &'a Header,
    /// The last header that is written as a whole, for the rest.
    rest: Option<&'a Header>,
    is_new: bool,
}

enum Task<'a> {
    Put(Box<TaskRow>),
    Hold(&'a TaskHold),
    Close,
}

impl<'a> Rows<'a> {
    /// Adds the entries and the header of a run.
    pub fn add_run(&mut self, write: &'a RunWrite) {
        let header = &write.header;
        for row in &write.entries {
            self.entries.run.push(int(header.num));
            self.entries.seq.push(row.seq.into());
            self.entries.lsn.push(int(row.lsn));
            self.entries.begins.push(row.begins);
            self.entries.entry.push(row.bytes.clone());
        }
        let is_new = write.expected.is_none();
        let rest = (is_new || write.whole).then_some(header);
        self.headers
            .entry(header.num)
            .and_modify(|it| {
                it.last = header;
                it.rest = rest.or(it.rest);
            })
            .or_insert(Pending { last: header, rest, is_new });
    }

    /// Adds a write, if it is one of an open task.
    pub fn add(&mut self, write: &'a Write) -> bool {
        match write {
            Write::PutTask(task) => {
                self.tasks.insert((task.run, task.step), Task::Put(task.clone()));
            }
            Write::HoldTask(hold) => match self.tasks.get_mut(&(hold.run, hold.step)) {
                Some(Task::Put(task)) => {
                    task.phase = hold.phase;
                    task.worker.clone_from(&hold.worker);
                    task.deadline_ms = hold.deadline_ms;
                    task.lease_ms = hold.lease_ms;
                    task.graces = hold.graces;
                }
                Some(Task::Close) => {}
                Some(held @ Task::Hold(_)) => *held = Task::Hold(hold),
                None => {
                    if !self.closed.contains(&hold.run) {
                        self.tasks.insert((hold.run, hold.step), Task::Hold(hold));
                    }
                }
            },
            Write::CloseTask { run, step } => {
                self.tasks.insert((*run, *step), Task::Close);
            }
            Write::CloseTasks { run } => {
                self.tasks.retain(|(of, _), _| of != run);
                self.closed.insert(*run);
            }
            _ => return false,
        }
        true
    }

    /// Returns the statements, and leaves nothing.
    pub fn take(&mut self, calls: &mut Vec<Call>) {
        let Self { entries, headers, closed, tasks } = std::mem::take(self);
        if !entries.run.is_empty() {
            calls.push(
                Call::new(
                    "INSERT INTO journal (run, seq, lsn, begins, entry)
                     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bool[],
                         $5::bytea[])",
                )
                .with(entries.run)
                .with(entries.seq)
                .with(entries.lsn)
                .with(entries.begins)
                .with(entries.entry),
            );
        }
        put_headers(&headers.into_values().collect::<Vec<_>>(), calls);
        if !closed.is_empty() {
            let runs: Vec<i64> = closed.into_iter().map(int).collect();
            calls.push(Call::new("DELETE FROM tasks WHERE run = ANY($1)").with(runs));
        }
        put_tasks(&tasks, calls);
    }
}

fn put_headers(pending: &[Pending<'_>], calls: &mut Vec<Call>) {
    let plain: Vec<&Header> =
        pending.iter().filter(|it| it.rest.is_none()).map(|it| it.last).collect();
    if !plain.is_empty() {
        calls.push(counters(
            "UPDATE runs r SET cursor = x.cursor, seq = x.seq, steps = x.steps,
                 steps_done = x.steps_done, updated_ms = x.updated_ms, bytes = x.bytes
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                 $6::bigint[], $7::bigint[])
                 AS x (num, cursor, seq, steps, steps_done, updated_ms, bytes)
             WHERE r.num = x.num",
            &plain,
        ));
    }
    for Pending { last, rest, is_new } in pending {
        let Some(rest) = rest else { continue };
        calls.push(if *is_new { insert(last, rest) } else { replace(last, rest) });
        if *is_new {
            for (name, value) in rest.tags.iter() {
                calls.push(
                    Call::new(
                        "INSERT INTO run_tags (name, value, created_ms, run) VALUES ($1, $2, $3, $4)
                         ON CONFLICT DO NOTHING",
                    )
                    .text(name)
                    .text(value)
                    .num(rest.created_ms)
                    .num(rest.num),
                );
            }
        }
        if rest.ended_ms.is_some()
            && let Some(words) = words::of_run(rest)
        {
            calls.push(
                Call::new(
                    "INSERT INTO run_words (run, words) VALUES ($1, $2::text::tsvector)
                     ON CONFLICT (run) DO UPDATE SET words = excluded.words",
                )
                .num(rest.num)
                .with(words),
            );
        }
    }
}

fn counters(sql: &'static str, headers: &[&Header]) -> Call {
    let all = |number: fn(&Header) -> u64| -> Vec<i64> {
        headers.iter().map(|header| int(number(header))).collect()
    };
    Call::new(sql)
        .with(all(|it| it.num))
        .with(all(|it| it.cursor))
        .with(all(|it| it.seq.into()))
        .with(all(|it| it.steps.into()))
        .with(all(|it| it.steps_done.into()))
        .with(all(|it| it.updated_ms))
        .with(all(|it| it.bytes))
}

fn insert(last: &Header, header: &Header) -> Call {
    let tags =
        (!header.tags.is_empty()).then(|| serde_json::to_string(&header.tags).expect("plain data"));
    let call = Call::new(
        "INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, bytes, status, wake_at_ms,
             epoch, ended_ms, progress, hash, status_text, error, waiting_on, used, created_ms, nonce,
             parent_run, parent_step, blueprint, principal, tags)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
             $20, $21, $22, $23, $24)",
    );
    changing(call, last, header)
        .num(header.created_ms)
        .with(bits(header.nonce))
        .num_or_null(header.parent.map(|(run, _)| run))
        .num_or_null(header.parent.map(|(_, step)| step.into()))
        .text(&header.blueprint)
        .text(&header.principal)
        .text_or_null(tags.as_deref())
}

/// Updates everything that can change.
fn replace(last: &Header, header: &Header) -> Call {
    let call = Call::new(
        "UPDATE runs SET cursor = $2, seq = $3, steps = $4, steps_done = $5, updated_ms = $6,
             bytes = $7, status = $8, wake_at_ms = $9, epoch = $10, ended_ms = $11, progress = $12,
             hash = $13, status_text = $14, error = $15, waiting_on = $16, used = $17
         WHERE num = $1",
    );
    changing(call, last, header)
}

fn changing(call: Call, last: &Header, header: &Header) -> Call {
    call.num(last.num)
        .num(last.cursor)
        .num(last.seq)
        .num(last.steps)
        .num(last.steps_done)
        .num(last.updated_ms)
        .num(last.bytes)
        .with(codes::status(header.status))
        .num_or_null(header.wake_at_ms)
        .num(header.epoch)
        .num_or_null(header.ended_ms)
        // As the embedded store: no NaN.
        .with(header.progress.filter(|it| !it.is_nan()))
        .text(&header.hash)
        .text_or_null(header.status_text.as_deref())
        .text_or_null(header.error.as_deref())
        .text_or_null(header.waiting_on.as_deref())
        .text_or_null(header.used.as_deref())
}

fn put_tasks(tasks: &BTreeMap<(u64, u32), Task<'_>>, calls: &mut Vec<Call>) {
    let (mut runs, mut steps) = (Vec::new(), Vec::new());
    for ((run, step), task) in tasks {
        match task {
            Task::Close => {
                runs.push(int(*run));
                steps.push(i64::from(*step));
            }
            Task::Hold(hold) => calls.push(
                Call::new(
                    "UPDATE tasks SET phase = $3, worker = $4, deadline_ms = $5, lease_ms = $6,
                         graces = $7
                     WHERE run = $1 AND step = $2",
                )
                .num(hold.run)
                .num(hold.step)
                .with(codes::phase(hold.phase))
                .text_or_null(hold.worker.as_deref())
                .num_or_null(hold.deadline_ms)
                .num_or_null(hold.lease_ms)
                .num(hold.graces),
            ),
            Task::Put(task) => calls.push(put_task(task)),
        }
    }
    if !runs.is_empty() {
        calls.push(
            Call::new(
                "DELETE FROM tasks t USING unnest($1::bigint[], $2::bigint[]) AS x (run, step)
                 WHERE t.run = x.run AND t.step = x.step",
            )
            .with(runs)
            .with(steps),
        );
    }
}

fn put_task(task: &TaskRow) -> Call {
    Call::new(
        "INSERT INTO tasks (run, step, attempt, epoch, agent, operator, kind, queue, phase,
             scheduled_ms, opened_ms, worker, deadline_ms, lease_ms, summary, prompt, question, graces)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
         ON CONFLICT (run, step) DO UPDATE SET attempt = excluded.attempt, epoch = excluded.epoch,
             agent = excluded.agent, operator = excluded.operator, kind = excluded.kind,
             queue = excluded.queue, phase = excluded.phase, scheduled_ms = excluded.scheduled_ms,
             opened_ms = excluded.opened_ms, worker = excluded.worker,
             deadline_ms = excluded.deadline_ms, lease_ms = excluded.lease_ms,
             summary = excluded.summary, prompt = excluded.prompt, question = excluded.question,
             graces = excluded.graces",
    )
    .num(task.run)
    .num(task.step)
    .num(task.attempt)
    .num(task.epoch)
    .text(&task.agent)
    .text(&task.operator)
    .text(&task.kind)
    .text_or_null(task.queue.as_deref())
    .with(codes::phase(task.phase))
    .num(task.scheduled_ms)
    .num(task.opened_ms)
    .text_or_null(task.worker.as_deref())
    .num_or_null(task.deadline_ms)
    .num_or_null(task.lease_ms)
    .text_or_null(task.summary.as_deref())
    .text(&task.prompt)
    .text_or_null(task.question.as_deref())
    .num(task.graces)
}
