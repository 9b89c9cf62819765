//! The speed of the bare machine, without a daemon: the same rows through SQLite in a plain loop, and
//! children that do nothing.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rusqlite::{Connection, params};
use serde::Serialize;

/// The schema that the daemon writes.
const SCHEMA: &str = include_str!("../../src/store/sqlite/migrations/0001_initial.sql");
/// The size of an echo step's entry: its payload twice, and an envelope.
const ENTRY: usize = 2 * 258 + 48;
/// Runs whose headers change in turn.
const RUNS: i64 = 64;

/// The disk's figures.
#[derive(Default, Serialize)]
pub struct Bare {
    /// Steps a second with a commit a step: one journal row and one header update each.
    pub steps_s_batch_1: f64,
    /// Steps a second with a commit every 64 steps.
    pub steps_s_batch_64: f64,
    /// Half of all commits of one step took no longer.
    pub commit_p50_ms: f64,
    /// 99 of 100 commits of one step took no longer.
    pub commit_p99_ms: f64,
    /// Children (`/bin/true`) a second, as many at a time as there are processors.
    pub children_s: f64,
}

/// Writes for `time` at each batch.
pub fn measure(dir: &Path, time: Duration) -> Result<Bare> {
    std::fs::create_dir_all(dir)?;
    let (steps_s_batch_1, mut times) = batches(&dir.join("1.db"), 1, time)?;
    let (steps_s_batch_64, _) = batches(&dir.join("64.db"), 64, time)?;
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    let (commit_p50_ms, commit_p99_ms) = (at(0.5), at(0.99));
    let children_s = children(time)?;
    Ok(Bare { steps_s_batch_1, steps_s_batch_64, commit_p50_ms, commit_p99_ms, children_s })
}

/// Starts children with pipes, and waits for them, for `time`.
fn children(time: Duration) -> Result<f64> {
    let began = Instant::now();
    let one = || {
        let mut children = 0_u32;
        while began.elapsed() < time {
            let mut child = Command::new("/bin/true");
            child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
            children += 1;
        }
        anyhow::Ok(children)
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..thread::available_parallelism()?.get()).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|it| it.join().expect("it counts")).sum::<Result<u32>>()
    })?;
    Ok(f64::from(all) / began.elapsed().as_secs_f64())
}

fn batches(path: &Path, batch: i64, time: Duration) -> Result<(f64, Vec<Duration>)> {
    let mut conn = Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 1000;",
    )?;
    conn.execute_batch(SCHEMA)?;
    for run in 0..RUNS {
        conn.execute(
            "INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, created_ms, status,
                 epoch, blueprint, hash, principal)
             VALUES (?1, 0, 0, 0, 0, 0, 0, 'running', 1, 'load', ?2, 'admin')",
            params![run, "0".repeat(64)],
        )?;
    }
    let entry = vec![b'x'; ENTRY];
    let (mut lsn, mut times) = (0i64, Vec::new());
    let began = Instant::now();
    while began.elapsed() < time {
        let start = Instant::now();
        let tx = conn.transaction()?;
        {
            let mut append = tx.prepare_cached(
                "INSERT INTO journal (lsn, run, prev_lsn, entry) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let mut advance = tx.prepare_cached(
                "UPDATE runs SET cursor = ?2, seq = ?3, steps = ?3, steps_done = ?3, updated_ms = ?4
                 WHERE num = ?1",
            )?;
            for _ in 0..batch {
                lsn += 1;
                append.execute(params![lsn, lsn % RUNS, lsn - RUNS, entry])?;
                advance.execute(params![lsn % RUNS, lsn, lsn / RUNS, 1_700_000_000_000 + lsn])?;
            }
        }
        tx.commit()?;
        times.push(start.elapsed());
    }
    Ok((lsn as f64 / began.elapsed().as_secs_f64(), times))
}
