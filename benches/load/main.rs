//! The load generator: what a daemon does a second over HTTP, beside what its disk can do.
//!
//! It starts the real program in a process of its own (or drives `--server URL --token T`), sends
//! runs of `echo` steps through gate, stack and spawner, and prints one row a load. In the same
//! run the bare disk writes the same rows in a plain loop, so that each figure can be read as a
//! ratio. Re-run it with `cargo bench --bench load`; `-- --quick` takes a few seconds.

#![allow(clippy::disallowed_methods, reason = "a bench measures with the real clock")]

mod bare;
mod client;
mod daemon;
mod drive;
mod fairness;
mod llm;
mod mcp;
mod options;
mod parked;
mod pressure;
mod report;
mod sessions;
mod slow;
mod state;
mod worker;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    client::Client,
    daemon::Daemon,
    drive::{Load, Shape},
    options::Options,
    report::{Idle, Memory, Report},
};

/// The numbers of runs at a time.
const CONCURRENCY: [usize; 3] = [1, 8, 64];
/// Steps of a run that goes through them one after the other.
const SERIAL: [usize; 4] = [1, 10, 100, 1_000];
/// Steps that one run schedules at once.
const FAN_OUT: [usize; 3] = [100, 1_000, 10_000];

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the client's runtime")?;
    let report = runtime.block_on(measure(&options))?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    anyhow::ensure!(report.errors() == 0, "{} requests failed", report.errors());
    if options.gate {
        report.gate()?;
    }
    Ok(())
}

/// A directory that goes with the bench.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Self> {
        let dir = parent.join(format!("load-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self(dir.canonicalize()?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is only disk space.
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn measure(options: &Options) -> Result<Report> {
    // The system's temporary directory may be memory; the disk that counts is the build's.
    let dir = Scratch::new(options.dir())?;
    let slow = options.slow_sync_ms.map(|ms| slow::Shim::compile(&dir.0, ms)).transpose()?;
    let env = slow.as_ref().map(|shim| shim.env()).unwrap_or_default();
    let daemon = match &options.server {
        Some((url, token)) => Daemon::elsewhere(url, token)?,
        None => Daemon::start_with(&options.binary()?, &dir.0.join("data"), &env)?,
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let idle = Idle {
        start_to_ready_ms: daemon.start_to_ready().map(|it| it.as_secs_f64() * 1e3),
        rss_bytes: daemon.rss(),
        binary_bytes: daemon.binary_bytes(),
    };
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    drive::publish(&mut client).await?;
    let tokens = drive::tokens(&mut client, CONCURRENCY[CONCURRENCY.len() - 1]).await?;

    let mut report = Report { idle, ..Report::default() };
    let time = options.time();
    if options.wants("memory") {
        // The first runs make the heap and the caches as large as they get under load.
        let more = options.size(9_000, 99_000, 999_000);
        report.memory = Memory { runs: [1_000, more + 1_000], ..Memory::default() };
        let first = Load::counted(Shape::Serial(1), 64, 1_000);
        drive::run(&daemon, &tokens, &first).await?;
        report.memory.after_the_first = daemon.rss();
        let more = Load::counted(Shape::Serial(1), 64, more);
        drive::run(&daemon, &tokens, &more).await?;
        report.memory.after_all = daemon.rss();
    }
    let timed = |shape, concurrency| Load::timed(shape, concurrency, time);
    let serial =
        SERIAL.into_iter().flat_map(|steps| CONCURRENCY.map(|at| timed(Shape::Serial(steps), at)));
    let fan_out =
        FAN_OUT.into_iter().flat_map(|steps| [1, 8].map(|at| timed(Shape::FanOut(steps), at)));
    let elsewhere = [
        timed(Shape::Queue(10), 1),
        timed(Shape::Queue(10), 64),
        timed(Shape::QueueNext(10), 64),
        timed(Shape::Batch(10), 64),
        timed(Shape::BatchNext(10), 64),
        timed(Shape::Process(10), 1),
        timed(Shape::Process(10), 32),
    ];
    for load in serial.chain(fan_out).chain(elsewhere).filter(|load| options.wants(&load.name())) {
        report.loads.push(drive::run(&daemon, &tokens, &load).await?);
    }
    if options.wants("worker") {
        report.worker = worker::measure(&daemon, &tokens, time).await?;
    }
    if options.wants("state") {
        let values = options.size(20_000, 100_000, 1_000_000);
        report.state = Some(state::measure(&daemon, &dir.0.join("state"), values, time).await?);
    }
    report.memory.at_the_end = daemon.rss();
    drop(daemon);
    report.bare = bare::measure(&dir.0.join("bare"), time)?;
    if options.server.is_none() {
        waiting(options, &dir.0, &mut report).await?;
    }
    Ok(report)
}

/// Measures with daemons of its own, some of which it kills.
async fn waiting(options: &Options, dir: &Path, report: &mut Report) -> Result<()> {
    let binary = options.binary()?;
    if options.wants("replay") {
        report.replay = Some(parked::replay(&binary, &dir.join("replay")).await?);
    }
    if options.wants("parked") {
        let runs = options.size(2_000, 20_000, 1_000_000);
        report.parked = Some(parked::parked(&binary, &dir.join("parked"), runs).await?);
    }
    if options.wants("timers") {
        let runs = options.size(2_000, 10_000, 100_000);
        report.timers = Some(parked::timers(&binary, &dir.join("timers"), runs).await?);
    }
    if options.wants("sessions") {
        let (many, time) = (options.sessions, options.time());
        report.sessions =
            Some(sessions::measure(&binary, &dir.join("sessions"), many, time).await?);
    }
    if options.wants("llm") {
        let streams = options.size(100, 1_000, 1_000);
        report.llm = Some(llm::measure(&binary, &dir.join("llm"), streams, options.time()).await?);
    }
    if options.wants("mcp") {
        report.mcp = Some(mcp::measure(&binary, &dir.join("mcp"), options.time()).await?);
    }
    if options.wants("fairness") {
        let entries = options.size(30_000, 200_000, 1_000_000);
        let dir = dir.join("fairness");
        report.fairness = Some(fairness::measure(&binary, &dir, options.time(), entries).await?);
    }
    if options.wants("pressure") {
        let (queued, workers) =
            (options.size(2_000, 10_000, 50_000), options.size(100, 1_000, 1_000));
        report.pressure =
            Some(pressure::measure(&binary, &dir.join("pressure"), queued, workers).await?);
    }
    Ok(())
}
