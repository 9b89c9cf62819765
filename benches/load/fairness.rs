//! Small runs beside runs that flood: how late does a neighbour get?

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::json as object;

use crate::{
    client::{Client, json},
    daemon::Daemon,
    drive,
};

/// Runs that flood at a time.
const FLOODS: usize = 8;
/// The floods, each with its flow.
const KINDS: [(&str, &str); 6] = [
    ("continue_as", "ctx:continue_as({})"),
    ("artifacts", r#"while true do ctx:artifact("a.txt", "x") end"#),
    ("state", r#"local n = 0 while true do n = n + 1 ctx.state:set("k" .. n % 100, n) end"#),
    ("sleep 0s", r#"while true do ctx:sleep("0s") end"#),
    ("wait 0s", r#"while true do ctx:wait("never", { timeout = "0s" }) end"#),
    ("echo steps", r#"for _ = 1, 99000 do ctx:run("e", 1) end"#),
];
/// Entries of the run that goes on in fresh histories, in each of them.
const HISTORY: usize = 10_000;

/// A small run beside each flood.
#[derive(Serialize)]
pub struct Fairness {
    /// Each flood.
    pub floods: Vec<Flood>,
    /// The run in many histories.
    pub long: Long,
}

/// Small runs beside eight of one kind.
#[derive(Serialize)]
pub struct Flood {
    /// The kind of the flood.
    pub kind: &'static str,
    /// Small runs, one after the other.
    pub runs: usize,
    /// Half took no longer.
    pub p50_ms: f64,
    /// 99 of 100 took no longer.
    pub p99_ms: f64,
    /// None took longer.
    pub max_ms: f64,
    /// The slowest cancel.
    pub cancel_ms: f64,
    /// Resident memory at the end.
    pub rss_bytes: Option<u64>,
}

/// One run whose histories together have very many entries.
#[derive(Serialize)]
pub struct Long {
    /// The number of entries.
    pub entries: usize,
    /// Entries a second.
    pub per_second: f64,
    /// Resident memory after the first tenth.
    pub first_bytes: Option<u64>,
    /// Resident memory at the end.
    pub last_bytes: Option<u64>,
    /// The time that the run's view takes at the end.
    pub view_ms: f64,
}

/// Measures each kind with a daemon of its own, then the long run.
pub async fn measure(
    binary: &Path,
    dir: &Path,
    time: Duration,
    entries: usize,
) -> Result<Fairness> {
    let mut floods = Vec::with_capacity(KINDS.len());
    for (n, (kind, flow)) in KINDS.iter().enumerate() {
        floods.push(flood(binary, &dir.join(format!("flood-{n}")), kind, flow, time).await?);
    }
    Ok(Fairness { floods, long: long(binary, &dir.join("long"), entries).await? })
}

async fn publish(client: &mut Client, name: &str, flow: &str) -> Result<()> {
    let source = format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"{name}\", \
         agents = {{ e = {{ operator = \"echo\" }} }}, flow = function(ctx, input) {flow} end }}"
    );
    let body = object!({ "source": source }).to_string();
    json(client.send("PUT", &format!("/v1/blueprints/{name}"), &body).await?)?;
    Ok(())
}

async fn start(client: &mut Client, name: &str, input: &serde_json::Value) -> Result<String> {
    let body = object!({ "blueprint": name, "input": input }).to_string();
    let view = json(client.send("POST", "/v1/runs", &body).await?)?;
    Ok(view["id"].as_str().context("an id")?.to_owned())
}

async fn flood(
    binary: &Path,
    dir: &Path,
    kind: &'static str,
    flow: &str,
    time: Duration,
) -> Result<Flood> {
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    publish(&mut client, "flood", flow).await?;
    publish(&mut client, "small", "return ctx:run(\"e\", 1)").await?;
    // What one token may ask a second is limited.
    let tokens = drive::tokens(&mut client, 8).await?;
    let mut runs = Vec::new();
    for _ in 0..FLOODS {
        runs.push(start(&mut client, "flood", &object!({})).await?);
    }
    let body = object!({ "blueprint": "small", "input": {}, "wait": "30s" }).to_string();
    let (mut times, began) = (Vec::new(), Instant::now());
    for token in tokens.iter().cycle() {
        if began.elapsed() >= time {
            break;
        }
        let sent = Instant::now();
        let view = json(client.send_as(token, "POST", "/v1/runs", &body).await?)?;
        ensure!(view["status"] == "completed", "a small run beside {kind}: {view}");
        times.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    let mut cancel_ms = 0.0_f64;
    for run in &runs {
        let sent = Instant::now();
        let path = format!("/v1/runs/{run}/cancel");
        let (status, answer) = client.send("POST", &path, "{}").await?;
        // One that met its limit has ended.
        ensure!(status < 300 || status == 409, "{status} {}", String::from_utf8_lossy(answer));
        cancel_ms = cancel_ms.max(sent.elapsed().as_secs_f64() * 1e3);
    }
    let rss_bytes = daemon.rss();
    times.sort_by(f64::total_cmp);
    ensure!(!times.is_empty(), "no small run ended beside {kind}");
    Ok(Flood {
        kind,
        runs: times.len(),
        p50_ms: times[times.len() / 2],
        p99_ms: times[times.len() * 99 / 100],
        max_ms: times[times.len() - 1],
        cancel_ms,
        rss_bytes,
    })
}

async fn long(binary: &Path, dir: &Path, entries: usize) -> Result<Long> {
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let flow = "for _ = 1, input.steps do ctx:run(\"e\", 1) end \
                if input.left > 1 then ctx:continue_as({ steps = input.steps, left = input.left - 1 }) end";
    publish(&mut client, "long", flow).await?;
    let histories = entries.div_ceil(HISTORY);
    let run = |histories| object!({ "steps": HISTORY - 1, "left": histories });
    let mut first_bytes = None;
    let mut seconds = 0.0;
    for part in [histories.div_ceil(10), histories] {
        let began = Instant::now();
        let id = start(&mut client, "long", &run(part)).await?;
        loop {
            let path = format!("/v1/runs/{id}?wait=30s");
            let view = json(client.send("GET", &path, "").await?)?;
            if !view["ended_at"].is_null() {
                ensure!(view["status"] == "completed", "the long run: {view}");
                break;
            }
        }
        seconds = began.elapsed().as_secs_f64();
        first_bytes = first_bytes.or_else(|| daemon.rss());
    }
    let last_bytes = daemon.rss();
    let looked = Instant::now();
    json(client.send("GET", "/v1/runs?limit=10", "").await?)?;
    let view_ms = looked.elapsed().as_secs_f64() * 1e3;
    let entries = histories * HISTORY;
    let per_second = entries as f64 / seconds;
    Ok(Long { entries, per_second, first_bytes, last_bytes, view_ms })
}
