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
mod options;
mod report;

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

/// How many runs at a time.
const CONCURRENCY: [usize; 3] = [1, 8, 64];
/// Steps of a run that goes through them one after the other.
const SERIAL: [usize; 3] = [1, 10, 100];
/// Steps that one run schedules at once.
const FAN_OUT: [usize; 2] = [100, 1_000];

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
    let daemon = match &options.server {
        Some((url, token)) => Daemon::elsewhere(url, token)?,
        None => Daemon::start(&options.binary()?, &dir.0.join("data"))?,
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

    let mut loads = Vec::new();
    let mut memory = Memory::default();
    let time = options.time();
    if options.wants_all() {
        // The first runs make the heap and the caches as large as they get under load.
        let first = Load::counted(Shape::Serial(1), 64, 1_000);
        drive::run(&daemon, &tokens, &first).await?;
        memory.after_1_000_runs = daemon.rss();
        let more = Load::counted(Shape::Serial(1), 64, 9_000);
        drive::run(&daemon, &tokens, &more).await?;
        memory.after_10_000_runs = daemon.rss();
    }
    let serial = SERIAL.into_iter().flat_map(|steps| {
        CONCURRENCY.map(|concurrency| Load::timed(Shape::Serial(steps), concurrency, time))
    });
    let fan_out = FAN_OUT.into_iter().flat_map(|steps| {
        [1, 8].map(|concurrency| Load::timed(Shape::FanOut(steps), concurrency, time))
    });
    for load in serial.chain(fan_out).filter(|load| options.wants(&load.name())) {
        loads.push(drive::run(&daemon, &tokens, &load).await?);
    }
    memory.at_the_end = daemon.rss();
    drop(daemon);
    let bare = bare::measure(&dir.0.join("bare"), time)?;
    Ok(Report { idle, loads, bare, memory })
}
