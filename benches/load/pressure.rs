//! A daemon with a full queue and a crowd of waiting workers still says how it is.

use std::{
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json as object;
use tokio::task::LocalSet;

use crate::{client::Client, daemon::Daemon, drive, parked};

/// Health, asked throughout.
#[derive(Serialize)]
pub struct Pressure {
    /// Runs whose task waits in a queue that nobody serves.
    pub queued: usize,
    /// Workers that wait at another queue.
    pub workers: usize,
    /// The number of requests for the health.
    pub asked: usize,
    /// 99 of 100 answers took no longer.
    pub health_p99_ms: f64,
    /// No answer took longer.
    pub health_max_ms: f64,
    /// Resident memory at the end.
    pub rss_bytes: Option<u64>,
}

/// Lets so many workers wait, queues so many runs, and asks for health all the while.
pub async fn measure(binary: &Path, dir: &Path, queued: usize, workers: usize) -> Result<Pressure> {
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    drive::publish(&mut client).await?;
    let mut waiting = Vec::with_capacity(workers);
    for _ in 0..workers {
        waiting.push(Client::connect(daemon.address(), daemon.token()).await?);
    }
    let set = LocalSet::new();
    let over = Rc::new(tokio::sync::Notify::new());
    for mut client in waiting {
        let body = object!({ "queue": "nothing", "wait": "30s" }).to_string();
        set.spawn_local(async move {
            loop {
                // A worker that is told to come back does, a second later.
                if client.send("POST", "/v1/worker/lease", &body).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    let health = {
        let over = Rc::clone(&over);
        set.spawn_local(async move {
            let mut times = Vec::new();
            let done = over.notified();
            tokio::pin!(done);
            loop {
                tokio::select! {
                    () = &mut done => return Ok::<_, anyhow::Error>(times),
                    () = tokio::time::sleep(Duration::from_millis(5)) => {}
                }
                let sent = Instant::now();
                let (status, _) = client.send("GET", "/healthz", "").await?;
                ensure!(status == 200, "health said {status}");
                times.push(sent.elapsed().as_secs_f64() * 1e3);
            }
        })
    };
    let input = object!({ "steps": 1, "payload": "x", "agent": "pull" });
    let mut times = set
        .run_until(async {
            parked::start(&daemon, queued, &input, 0).await?;
            over.notify_one();
            health.await?
        })
        .await?;
    let rss_bytes = daemon.rss();
    drop(daemon);
    times.sort_by(f64::total_cmp);
    ensure!(!times.is_empty(), "health was never asked");
    Ok(Pressure {
        queued,
        workers,
        asked: times.len(),
        health_p99_ms: times[times.len() * 99 / 100],
        health_max_ms: times[times.len() - 1],
        rss_bytes,
    })
}
