//! Runs that wait: what they cost while they do, how soon a boot is over, how soon one goes on.

use std::{
    cell::{Cell, RefCell},
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::json as object;
use tokio::task::LocalSet;

use crate::{
    client::{Client, json},
    daemon::Daemon,
    drive,
};

/// Connections that start runs.
const STARTERS: usize = 64;
/// Steps of a parked run before it waits: with start and wait, up to 20 entries.
const STEPS: usize = 16;
/// Parked runs that are woken, one after the other.
const WOKEN: usize = 100;
/// Steps of the run that is replayed.
const REPLAYED: usize = 20_000;
/// The step of it whose locals are looked at, and how often.
const LOOKED_AT: usize = 10_000;
const LOOKS: usize = 9;
/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Parked runs.
#[derive(Serialize)]
pub struct Parked {
    /// The number of runs that wait for a signal.
    pub runs: usize,
    /// From the start of the process until it listens.
    pub boot_ms: f64,
    /// Resident memory after the boot.
    pub rss_bytes: Option<u64>,
    /// From the signal to the end of the run, both over HTTP; half took no longer.
    pub wake_p50_ms: f64,
    /// 99 of 100 took no longer.
    pub wake_p99_ms: f64,
}

/// Runs whose timers are due when the daemon boots.
#[derive(Serialize)]
pub struct Timers {
    /// The number of runs that are due.
    pub runs: usize,
    /// Runs that their timers ended, a second.
    pub per_second: f64,
    /// New one-step runs meanwhile; 99 of 100 took no longer, in milliseconds.
    pub new_run_p99_ms: f64,
}

/// A long history, read again.
#[derive(Serialize)]
pub struct Replay {
    /// Its entries.
    pub entries: usize,
    /// Entries a second, from the signal that asks for the run to its end.
    pub per_second: f64,
    /// The median time of a look at the locals of step 10,000 over HTTP, in milliseconds.
    pub locals_ms: f64,
}

/// Parks so many runs, kills the daemon, and looks at the next one.
pub async fn parked(binary: &Path, dir: &Path, runs: usize) -> Result<Parked> {
    let daemon = Daemon::start(binary, dir)?;
    let input = object!({ "steps": STEPS, "payload": "x", "wait": "go" });
    let ids = start(&daemon, runs, &input, WOKEN).await?;
    drop(daemon);
    let daemon = Daemon::start(binary, dir)?;
    let boot = daemon.start_to_ready().context("its own daemon")?;
    let rss_bytes = daemon.rss();
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let mut times = Vec::with_capacity(ids.len());
    for id in &ids {
        let began = Instant::now();
        wake(&mut client, id).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(Parked {
        runs,
        boot_ms: boot.as_secs_f64() * 1e3,
        rss_bytes,
        wake_p50_ms: times[times.len() / 2],
        wake_p99_ms: times[times.len() * 99 / 100],
    })
}

/// Lets so many runs sleep until after the next boot, and counts how fast they end then.
pub async fn timers(binary: &Path, dir: &Path, runs: usize) -> Result<Timers> {
    let daemon = Daemon::start(binary, dir)?;
    // A second for each 2,000 starts: all of them sleep while the daemon is killed.
    let sleep = format!("{}s", 5 + runs / 2_000);
    let began = Instant::now();
    let input = object!({ "steps": 0, "payload": "x", "sleep": sleep });
    start(&daemon, runs, &input, 0).await?;
    drop(daemon);
    let due = Duration::from_secs(6 + runs as u64 / 2_000) + Duration::from_secs(1);
    tokio::time::sleep((due + began.elapsed()).saturating_sub(began.elapsed())).await;
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let body = object!({ "blueprint": "load", "wait": "60s",
        "input": { "steps": 1, "payload": "x" } });
    let body = body.to_string();
    let (began, mut times) = (Instant::now(), Vec::new());
    let (mut waiting, mut seen) = (runs as u64, Instant::now());
    while waiting > 0 {
        ensure!(began.elapsed() < PATIENCE, "{waiting} of {runs} timers did not fire");
        let sent = Instant::now();
        json(client.send("POST", "/v1/runs", &body).await?).context("start a run")?;
        times.push(sent.elapsed().as_secs_f64() * 1e3);
        if seen.elapsed() > Duration::from_millis(100) {
            waiting = daemon.runs("waiting")?;
            seen = Instant::now();
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Ok(Timers {
        runs,
        per_second: runs as f64 / seconds,
        new_run_p99_ms: times[times.len() * 99 / 100],
    })
}

/// Kills the daemon over a run with a long history, and times how it goes on.
pub async fn replay(binary: &Path, dir: &Path) -> Result<Replay> {
    let daemon = Daemon::start(binary, dir)?;
    let input = object!({ "steps": REPLAYED, "payload": "x", "wait": "go" });
    let ids = start(&daemon, 1, &input, 1).await?;
    let began = Instant::now();
    while daemon.runs("waiting")? == 0 {
        ensure!(began.elapsed() < PATIENCE, "the run did not come to its wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(daemon);
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let began = Instant::now();
    wake(&mut client, &ids[0]).await?;
    let per_second = (REPLAYED + 2) as f64 / began.elapsed().as_secs_f64();
    let path = format!("/v1/runs/{}/steps/{LOOKED_AT}/locals", ids[0]);
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        let began = Instant::now();
        let view = json(client.send("GET", &path, "").await?)?;
        looks.push(began.elapsed().as_secs_f64() * 1_000.0);
        ensure!(view["branches"][0]["frames"][0]["variables"].is_array(), "no locals: {view}");
    }
    looks.sort_by(f64::total_cmp);
    Ok(Replay { entries: REPLAYED + 2, per_second, locals_ms: looks[LOOKS / 2] })
}

async fn wake(client: &mut Client, run: &str) -> Result<()> {
    json(client.send("POST", &format!("/v1/runs/{run}/signals/go"), "").await?)?;
    let ended = json(client.send("GET", &format!("/v1/runs/{run}?wait=60s"), "").await?)?;
    ensure!(ended["status"] == "completed", "a woken run did not end: {ended}");
    Ok(())
}

/// Starts runs over many connections without waiting for them; gives the ids of `wanted` of them,
/// spread over all.
pub async fn start(
    daemon: &Daemon,
    runs: usize,
    input: &serde_json::Value,
    wanted: usize,
) -> Result<Vec<String>> {
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    drive::publish(&mut client).await?;
    let tokens = drive::tokens(&mut client, STARTERS.min(runs)).await?;
    let body: Rc<str> = object!({ "blueprint": "load", "input": input }).to_string().into();
    let started = Rc::new(Cell::new(0));
    let ids = Rc::new(RefCell::new(Vec::new()));
    let failed = Rc::new(RefCell::new(None));
    let every = runs.div_ceil(wanted.max(1)).max(1);
    let set = LocalSet::new();
    for token in &tokens {
        let mut client = Client::connect(daemon.address(), token).await?;
        let (body, started) = (Rc::clone(&body), Rc::clone(&started));
        let (ids, failed) = (Rc::clone(&ids), Rc::clone(&failed));
        set.spawn_local(async move {
            while started.get() < runs && failed.borrow().is_none() {
                let n = started.get();
                started.set(n + 1);
                match client.send("POST", "/v1/runs", &body).await.and_then(json) {
                    Ok(run) if wanted > 0 && n.is_multiple_of(every) => {
                        let id = run["id"].as_str().unwrap_or_default().to_owned();
                        ids.borrow_mut().push(id);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        failed.borrow_mut().get_or_insert(error);
                    }
                }
            }
        });
    }
    set.await;
    match failed.take() {
        Some(error) => Err(error.context("start a run")),
        None => Ok(ids.take()),
    }
}
