//! The rows that most transitions write: entries, headers, open tasks, charges and counts. Those of a
//! group are folded and written together, one statement for all rows of a kind.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    codes,
    session::Call,
    value::{bits, int},
    words,
};
use crate::store::{ChargeRow, Header, RunWrite, TaskHold, TaskRow, Write};

/// The rows of a group that are not written yet.
#[derive(Default)]
pub struct Rows<'a> {
    entries: Entries,
    headers: BTreeMap<u64, Pending<'a>>,
    /// Runs whose tasks are all removed, before anything else is done with tasks.
    closed: BTreeSet<u64>,
    tasks: BTreeMap<(u64, u32), Task<'a>>,
    charges: BTreeMap<u64, &'a ChargeRow>,
    /// The counts of runs that ended.
    ended: Vec<Vec<u8>>,
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

    /// Adds a write, if it is one of those that are written together.
    pub fn add(&mut self, write: &'a Write) -> bool {
        match write {
            Write::PutCharge(row) => {
                self.charges.insert(row.run, row);
            }
            Write::CountRun(counted) => {
                let body = postcard::to_allocvec(counted).expect("counts are plain data");
                self.ended.push(body);
            }
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
        let Self { entries, headers, closed, tasks, charges, ended } = std::mem::take(self);
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
        if !charges.is_empty() {
            calls.push(put_charges(&charges.into_values().collect::<Vec<_>>()));
        }
        if !ended.is_empty() {
            let sql = "INSERT INTO stats_new (body) SELECT unnest($1::bytea[])";
            calls.push(Call::new(sql).with(ended));
        }
    }
}

fn put_charges(rows: &[&ChargeRow]) -> Call {
    let all = |number: fn(&ChargeRow) -> u64| -> Vec<i64> {
        rows.iter().map(|row| int(number(row))).collect()
    };
    Call::new(
        "INSERT INTO charges (run, jti, bytes, tokens, nano_usd)
         SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[])
         ON CONFLICT (run) DO UPDATE SET bytes = excluded.bytes, tokens = excluded.tokens,
             nano_usd = excluded.nano_usd",
    )
    .with(all(|row| row.run))
    .with(rows.iter().map(|row| bytes(&row.jti)).collect::<Vec<_>>())
    .with(all(|row| row.bytes))
    .with(all(|row| row.tokens))
    .with(all(|row| row.nano_usd))
}

fn put_headers(pending: &[Pending<'_>], calls: &mut Vec<Call>) {
    let plain: Vec<&Header> =
        pending.iter().filter(|it| it.rest.is_none()).map(|it| it.last).collect();
    if !plain.is_empty() {
        calls.push(counters(
            "WITH put AS (
                 UPDATE runs r SET cursor = x.cursor, seq = x.seq, steps = x.steps,
                     steps_done = x.steps_done, updated_ms = x.updated_ms, bytes = x.bytes
                 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                     $6::bigint[], $7::bigint[])
                     AS x (num, cursor, seq, steps, steps_done, updated_ms, bytes)
                 WHERE r.num = x.num
                 RETURNING 1)
             SELECT 1 / (CASE WHEN count(*) = cardinality($1) THEN 1 ELSE 0 END) FROM put",
            &plain,
        ));
    }
    let whole = |is_new: bool| -> Vec<Whole<'_>> {
        let of_kind = pending.iter().filter(|it| it.is_new == is_new);
        of_kind.filter_map(|it| it.rest.map(|rest| Whole { last: it.last, rest })).collect()
    };
    let (new, changed) = (whole(true), whole(false));
    if !new.is_empty() {
        calls.push(insert(&new));
        put_tags(&new, calls);
    }
    if !changed.is_empty() {
        calls.push(replace(&changed));
    }
    let ended = new.iter().chain(&changed).filter(|it| it.rest.ended_ms.is_some());
    let (runs, found): (Vec<i64>, Vec<String>) =
        ended.filter_map(|it| Some((int(it.rest.num), words::of_run(it.rest)?))).unzip();
    if !runs.is_empty() {
        calls.push(
            Call::new(
                "INSERT INTO run_words (run, words)
                 SELECT run, words::tsvector FROM unnest($1::bigint[], $2::text[]) AS x (run, words)
                 ON CONFLICT (run) DO UPDATE SET words = excluded.words",
            )
            .with(runs)
            .with(found),
        );
    }
}

/// A header of which more than the counters is written.
struct Whole<'a> {
    /// For what every write changes.
    last: &'a Header,
    /// For the rest.
    rest: &'a Header,
}

fn put_tags(new: &[Whole<'_>], calls: &mut Vec<Call>) {
    let tags = || {
        let all = new.iter().map(|it| it.rest);
        all.flat_map(|run| run.tags.iter().map(move |(name, value)| (run, name, value)))
    };
    if tags().next().is_none() {
        return;
    }
    calls.push(
        Call::new(
            "INSERT INTO run_tags (name, value, created_ms, run)
             SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[])
             ON CONFLICT DO NOTHING",
        )
        .with(tags().map(|(_, name, _)| name.as_bytes().to_vec()).collect::<Vec<_>>())
        .with(tags().map(|(_, _, value)| value.as_bytes().to_vec()).collect::<Vec<_>>())
        .with(tags().map(|(run, ..)| int(run.created_ms)).collect::<Vec<_>>())
        .with(tags().map(|(run, ..)| int(run.num)).collect::<Vec<_>>()),
    );
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

/// The columns of headers that change, as arrays of the first parameters.
macro_rules! changing {
    () => {
        "$1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
         $7::bigint[], $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::float8[], \
         $13::bytea[], $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[]"
    };
}

fn insert(new: &[Whole<'_>]) -> Call {
    let call = Call::new(concat!(
        "INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, bytes, status, wake_at_ms,
             epoch, ended_ms, progress, hash, status_text, error, waiting_on, used, created_ms, nonce,
             parent_run, parent_step, blueprint, principal, tags)
         SELECT * FROM unnest(",
        changing!(),
        ", $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bytea[], $23::bytea[],
             $24::bytea[])"
    ));
    let tags = |header: &Header| {
        (!header.tags.is_empty())
            .then(|| serde_json::to_string(&header.tags).expect("plain data").into_bytes())
    };
    changing(call, new)
        .with(all(new, |it| int(it.created_ms)))
        .with(all(new, |it| bits(it.nonce)))
        .with(all(new, |it| it.parent.map(|(run, _)| int(run))))
        .with(all(new, |it| it.parent.map(|(_, step)| i64::from(step))))
        .with(all(new, |it| bytes(&it.blueprint)))
        .with(all(new, |it| bytes(&it.principal)))
        .with(all(new, tags))
}

/// Updates everything that can change. Fails, as the update of counters does, if another lane has
/// deleted a run since the group began.
fn replace(changed: &[Whole<'_>]) -> Call {
    let call = Call::new(concat!(
        "WITH put AS (
             UPDATE runs r SET cursor = x.cursor, seq = x.seq, steps = x.steps,
                 steps_done = x.steps_done, updated_ms = x.updated_ms, bytes = x.bytes,
                 status = x.status, wake_at_ms = x.wake_at_ms, epoch = x.epoch, ended_ms = x.ended_ms,
                 progress = x.progress, hash = x.hash, status_text = x.status_text, error = x.error,
                 waiting_on = x.waiting_on, used = x.used
             FROM unnest(",
        changing!(),
        ")   AS x (num, cursor, seq, steps, steps_done, updated_ms, bytes, status, wake_at_ms, epoch,
                 ended_ms, progress, hash, status_text, error, waiting_on, used)
             WHERE r.num = x.num
             RETURNING 1)
         SELECT 1 / (CASE WHEN count(*) = cardinality($1) THEN 1 ELSE 0 END) FROM put"
    ));
    changing(call, changed)
}

fn changing(call: Call, headers: &[Whole<'_>]) -> Call {
    let last = |number: fn(&Header) -> u64| -> Vec<i64> {
        headers.iter().map(|it| int(number(it.last))).collect()
    };
    call.with(last(|it| it.num))
        .with(last(|it| it.cursor))
        .with(last(|it| it.seq.into()))
        .with(last(|it| it.steps.into()))
        .with(last(|it| it.steps_done.into()))
        .with(last(|it| it.updated_ms))
        .with(last(|it| it.bytes))
        .with(all(headers, |it| codes::status(it.status)))
        .with(all(headers, |it| it.wake_at_ms.map(int)))
        .with(all(headers, |it| i64::from(it.epoch)))
        .with(all(headers, |it| it.ended_ms.map(int)))
        // As the embedded store: no NaN.
        .with(all(headers, |it| it.progress.filter(|it| !it.is_nan())))
        .with(all(headers, |it| bytes(&it.hash)))
        .with(all(headers, |it| it.status_text.as_deref().map(bytes)))
        .with(all(headers, |it| it.error.as_deref().map(bytes)))
        .with(all(headers, |it| it.waiting_on.as_deref().map(bytes)))
        .with(all(headers, |it| it.used.as_deref().map(bytes)))
}

/// Returns a column of headers.
fn all<T>(headers: &[Whole<'_>], column: impl Fn(&Header) -> T) -> Vec<T> {
    headers.iter().map(|it| column(it.rest)).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn put_tasks(tasks: &BTreeMap<(u64, u32), Task<'_>>, calls: &mut Vec<Call>) {
    let (mut put, mut held) = (Vec::new(), Vec::new());
    let (mut runs, mut steps) = (Vec::new(), Vec::new());
    for ((run, step), task) in tasks {
        match task {
            Task::Close => {
                runs.push(int(*run));
                steps.push(i64::from(*step));
            }
            Task::Hold(hold) => held.push(*hold),
            Task::Put(task) => put.push(&**task),
        }
    }
    if !put.is_empty() {
        calls.push(insert_tasks(&put));
    }
    if !held.is_empty() {
        calls.push(hold_tasks(&held));
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

fn hold_tasks(held: &[&TaskHold]) -> Call {
    fn all<T>(held: &[&TaskHold], column: impl Fn(&TaskHold) -> T) -> Vec<T> {
        held.iter().map(|it| column(it)).collect()
    }
    Call::new(
        "UPDATE tasks t SET phase = x.phase, worker = x.worker, deadline_ms = x.deadline_ms,
             lease_ms = x.lease_ms, graces = x.graces
         FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[],
             $6::bigint[], $7::bigint[])
             AS x (run, step, phase, worker, deadline_ms, lease_ms, graces)
         WHERE t.run = x.run AND t.step = x.step",
    )
    .with(all(held, |it| int(it.run)))
    .with(all(held, |it| i64::from(it.step)))
    .with(all(held, |it| codes::phase(it.phase)))
    .with(all(held, |it| it.worker.as_deref().map(bytes)))
    .with(all(held, |it| it.deadline_ms.map(int)))
    .with(all(held, |it| it.lease_ms.map(int)))
    .with(all(held, |it| i64::from(it.graces)))
}

fn insert_tasks(tasks: &[&TaskRow]) -> Call {
    fn all<T>(tasks: &[&TaskRow], column: impl Fn(&TaskRow) -> T) -> Vec<T> {
        tasks.iter().map(|it| column(it)).collect()
    }
    Call::new(
        "INSERT INTO tasks (run, step, attempt, epoch, agent, operator, kind, queue, phase,
             scheduled_ms, opened_ms, worker, deadline_ms, lease_ms, summary, prompt, question, graces)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[],
             $6::bytea[], $7::bytea[], $8::bytea[], $9::smallint[], $10::bigint[], $11::bigint[],
             $12::bytea[], $13::bigint[], $14::bigint[], $15::bytea[], $16::bytea[], $17::bytea[],
             $18::bigint[])
         ON CONFLICT (run, step) DO UPDATE SET attempt = excluded.attempt, epoch = excluded.epoch,
             agent = excluded.agent, operator = excluded.operator, kind = excluded.kind,
             queue = excluded.queue, phase = excluded.phase, scheduled_ms = excluded.scheduled_ms,
             opened_ms = excluded.opened_ms, worker = excluded.worker,
             deadline_ms = excluded.deadline_ms, lease_ms = excluded.lease_ms,
             summary = excluded.summary, prompt = excluded.prompt, question = excluded.question,
             graces = excluded.graces",
    )
    .with(all(tasks, |it| int(it.run)))
    .with(all(tasks, |it| i64::from(it.step)))
    .with(all(tasks, |it| i64::from(it.attempt)))
    .with(all(tasks, |it| i64::from(it.epoch)))
    .with(all(tasks, |it| bytes(&it.agent)))
    .with(all(tasks, |it| bytes(&it.operator)))
    .with(all(tasks, |it| bytes(&it.kind)))
    .with(all(tasks, |it| it.queue.as_deref().map(bytes)))
    .with(all(tasks, |it| codes::phase(it.phase)))
    .with(all(tasks, |it| int(it.scheduled_ms)))
    .with(all(tasks, |it| int(it.opened_ms)))
    .with(all(tasks, |it| it.worker.as_deref().map(bytes)))
    .with(all(tasks, |it| it.deadline_ms.map(int)))
    .with(all(tasks, |it| it.lease_ms.map(int)))
    .with(all(tasks, |it| it.summary.as_deref().map(bytes)))
    .with(all(tasks, |it| bytes(&it.prompt)))
    .with(all(tasks, |it| it.question.as_deref().map(bytes)))
    .with(all(tasks, |it| i64::from(it.graces)))
}
