//! State: reads in process and over HTTP, durable writes in batches, searches over many values.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use moonswarm::{
    clock::Clock,
    protocol::{SearchOptions, StoreOptions},
    store::{
        Check, DurableState, Options as StoreSettings, Reducer, Sqlite, StateAct, StateChange,
        StateLimits, Store,
    },
    tasks::Tasks,
};
use serde::Serialize;

use crate::{client::Client, daemon::Daemon, drive};

/// Keys that are read.
const KEYS: usize = 10_000;
/// Connections that read, each with a token of its own.
const READERS: usize = 64;
/// Changes of a batch.
const BATCH: usize = 500;
/// Batches on their way at once.
const AT_ONCE: usize = 4;
/// One value of so many has both words that are searched for.
const RARITY: usize = 100;
/// Searches that are timed.
const SEARCHES: usize = 200;

/// The operations on state in a second.
#[derive(Default, Serialize)]
pub struct StateRates {
    /// Reads of one key in process, from one thread.
    pub reads_s: f64,
    /// Reads of one key over HTTP, on 64 connections.
    pub http_reads_s: f64,
    /// Durable writes over HTTP, in batches of 500, four at once.
    pub writes_s: f64,
    /// Values that are searched.
    pub values: usize,
    /// The number of them that have both words.
    pub matching: usize,
    /// Half of all searches (two words, the best 20) took no longer.
    pub search_p50_ms: f64,
    /// 99 of 100 searches took no longer.
    pub search_p99_ms: f64,
}

/// Measures against `daemon`, and in process over a directory of its own.
pub async fn measure(
    daemon: &Daemon,
    dir: &Path,
    values: usize,
    time: Duration,
) -> Result<StateRates> {
    std::fs::create_dir_all(dir)?;
    let (http_reads_s, writes_s) = over_http(daemon, time).await?;
    let store = Sqlite::open(dir, &StoreSettings::default())?;
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let state = DurableState::new(shared, Clock::system(), tasks, StateLimits::default());
    fill(&state, values).await?;
    let reads_s = reads(&state, values.min(KEYS), time)?;
    let mut times = Vec::with_capacity(SEARCHES);
    for n in 0..SEARCHES {
        let query = ["amber lantern", "lantern amber"][n % 2];
        let began = Instant::now();
        let found = state.find("global", query, "", 20, SearchOptions::default()).await?;
        times.push(began.elapsed());
        ensure!(found.len() == 20.min(values / RARITY), "{} values were found", found.len());
    }
    store.close()?;
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    Ok(StateRates {
        reads_s,
        http_reads_s,
        writes_s,
        values,
        matching: values / RARITY,
        search_p50_ms: at(0.5),
        search_p99_ms: at(0.99),
    })
}

fn text(n: usize) -> String {
    let words = ["harbour", "winter", "copper", "meadow", "signal", "granite", "velvet", "orchard"];
    let word = |salt: usize| words[(n / (salt + 1) + salt) % words.len()];
    let marked = if n.is_multiple_of(RARITY) { " amber lantern" } else { "" };
    format!("\"{} {} {} note {n}{marked} {}\"", word(1), word(2), word(3), word(5))
}

fn put(n: usize) -> StateChange {
    StateChange {
        scope: "global".to_owned(),
        key: format!("key/{n}"),
        if_revision: None,
        act: StateAct::Put {
            value: text(n),
            reducer: Reducer::Overwrite,
            hints: StoreOptions::default(),
        },
    }
}

async fn fill(state: &DurableState, values: usize) -> Result<()> {
    for begin in (0..values).step_by(5_000) {
        let changes = (begin..values.min(begin + 5_000)).map(put).collect();
        state.change(Vec::<Check>::new(), changes, None).await?;
    }
    Ok(())
}

fn reads(state: &DurableState, keys: usize, time: Duration) -> Result<f64> {
    let (began, mut read) = (Instant::now(), 0usize);
    while began.elapsed() < time {
        for _ in 0..100 {
            let key = format!("key/{}", (read * 7_919) % keys);
            ensure!(state.value("global", &key)?.is_some(), "{key} is missing");
            read += 1;
        }
    }
    Ok(read as f64 / began.elapsed().as_secs_f64())
}

async fn over_http(daemon: &Daemon, time: Duration) -> Result<(f64, f64)> {
    let writers = (0..AT_ONCE).map(|writer| write(daemon, writer, time));
    let began = Instant::now();
    let written: usize = futures::future::try_join_all(writers).await?.into_iter().sum();
    let writes_s = written as f64 / began.elapsed().as_secs_f64();
    // One token may ask only so often.
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let tokens = drive::tokens(&mut client, READERS).await?;
    let readers =
        tokens.iter().enumerate().map(|(n, token)| read(daemon, (n, token.as_str()), time));
    let began = Instant::now();
    let read: usize = futures::future::try_join_all(readers).await?.into_iter().sum();
    Ok((read as f64 / began.elapsed().as_secs_f64(), writes_s))
}

async fn write(daemon: &Daemon, writer: usize, time: Duration) -> Result<usize> {
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let (began, mut written) = (Instant::now(), 0);
    while began.elapsed() < time || written == 0 {
        let ops: Vec<String> = (0..BATCH)
            .map(|n| {
                let n = written + n;
                let value = text(n);
                format!(
                    r#"{{"op":"put","scope":"custom:load{writer}","key":"key-{n}","value":{value}}}"#
                )
            })
            .collect();
        let body = format!(r#"{{"ops":[{}]}}"#, ops.join(","));
        let (status, answer) = client.send("POST", "/v1/state/batch", &body).await?;
        ensure!(status == 200, "batch: {status} {}", String::from_utf8_lossy(answer));
        written += BATCH;
    }
    Ok(written)
}

async fn read(daemon: &Daemon, (reader, token): (usize, &str), time: Duration) -> Result<usize> {
    let mut client = Client::connect(daemon.address(), token).await?;
    let (began, mut read) = (Instant::now(), 0);
    while began.elapsed() < time {
        let path = format!("/v1/state/custom:load{}/key-{}", reader % AT_ONCE, (read * 7) % BATCH);
        let (status, _) = client.send("GET", &path, "").await?;
        ensure!(status == 200, "read: {status}");
        read += 1;
    }
    Ok(read)
}
