//! One load: so many connections, each starting a run as soon as its last one has ended.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::task::LocalSet;

use crate::{
    client::{Client, find},
    daemon::Daemon,
    report::Figures,
    worker,
};

/// The size of the input and the output of each step, in bytes.
const PAYLOAD: usize = 256;

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "load",
  agents = {
    echo = { operator = "echo" },
    pull = { operator = "queue", queue = "load" },
    child = { operator = "process", command = { "/bin/true" } },
  },
  flow = function(ctx, input)
    local agent = input.agent or "echo"
    if input.fan_out then
      local all = {}
      for i = 1, input.steps do all[i] = i end
      return #ctx:map(all, function() return ctx:run(agent, input.payload) end)
    end
    for _ = 1, input.steps do ctx:run(agent, input.payload) end
    if input.wait then ctx:wait(input.wait) end
    if input.sleep then ctx:sleep(input.sleep) end
    return input.steps
  end,
}
"#;

/// The work of a run.
#[derive(Clone, Copy)]
pub enum Shape {
    /// So many steps, one after the other.
    Serial(usize),
    /// So many steps at once.
    FanOut(usize),
    /// So many steps, one after the other, each leased and reported by a pull worker over HTTP.
    Queue(usize),
    /// The same, by workers that report a step and lease the next one in one request.
    QueueNext(usize),
    /// The same, all leased and reported by one worker that does it for many at a time.
    Batch(usize),
    /// The same, by one worker that reports and leases many in one request, two of them at a time.
    BatchNext(usize),
    /// So many steps, one after the other, each a child process that does nothing.
    Process(usize),
}

/// The end of a load.
#[derive(Clone, Copy)]
enum Until {
    Runs(usize),
    Time(Duration),
}

/// The requests of a load.
#[derive(Clone, Copy)]
pub struct Load {
    shape: Shape,
    concurrency: usize,
    until: Until,
}

impl Load {
    /// So many runs.
    pub fn counted(shape: Shape, concurrency: usize, runs: usize) -> Self {
        Self { shape, concurrency, until: Until::Runs(runs) }
    }

    /// The load's name: its shape, its steps, how many at a time.
    pub fn name(&self) -> String {
        match self.shape {
            Shape::Serial(steps) => format!("serial/{steps}/{}", self.concurrency),
            Shape::FanOut(steps) => format!("fan-out/{steps}/{}", self.concurrency),
            Shape::Queue(steps) => format!("queue/{steps}/{}", self.concurrency),
            Shape::QueueNext(steps) => format!("queue-next/{steps}/{}", self.concurrency),
            Shape::Batch(steps) => format!("batch/{steps}/{}", self.concurrency),
            Shape::BatchNext(steps) => format!("batch-next/{steps}/{}", self.concurrency),
            Shape::Process(steps) => format!("process/{steps}/{}", self.concurrency),
        }
    }

    /// As many runs as are started within a time.
    pub fn timed(shape: Shape, concurrency: usize, time: Duration) -> Self {
        Self { shape, concurrency, until: Until::Time(time) }
    }
}

/// Puts the blueprint.
pub async fn publish(client: &mut Client) -> Result<()> {
    let body = json!({ "source": BLUEPRINT }).to_string();
    let (status, answer) = client.send("PUT", "/v1/blueprints/load", &body).await?;
    ensure!(status < 300, "put the blueprint: {status} {}", String::from_utf8_lossy(answer));
    Ok(())
}

/// A token for each client, as each would have its own; what one may do a second is limited.
pub async fn tokens(client: &mut Client, clients: usize) -> Result<Vec<String>> {
    let body = json!({ "role": "admin", "ttl": "1h" }).to_string();
    let mut tokens = Vec::with_capacity(clients);
    for _ in 0..clients {
        let (status, answer) = client.send("POST", "/v1/tokens", &body).await?;
        ensure!(status == 201, "mint a token: {status} {}", String::from_utf8_lossy(answer));
        let minted: serde_json::Value = serde_json::from_slice(answer)?;
        tokens.push(minted["token"].as_str().context("a token")?.to_owned());
    }
    Ok(tokens)
}

/// Runs workers on this thread at the same time, until all of them are done.
pub async fn together<W>(workers: impl IntoIterator<Item = W>) -> Result<()>
where
    W: Future<Output = Result<()>> + 'static,
{
    let set = LocalSet::new();
    let workers: Vec<_> = workers.into_iter().map(|worker| set.spawn_local(worker)).collect();
    set.run_until(async {
        for worker in workers {
            worker.await??;
        }
        Ok(())
    })
    .await
}

/// Returns times in milliseconds, the shortest first.
pub fn sorted(times: Vec<Duration>) -> Vec<f64> {
    let mut times: Vec<f64> = times.into_iter().map(|it| it.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times
}

#[derive(Default)]
struct Tally {
    started: Cell<usize>,
    errors: Cell<usize>,
    times_us: RefCell<Vec<u32>>,
}

/// Sends a load and gives its figures.
pub async fn run(daemon: &Daemon, tokens: &[String], load: &Load) -> Result<Figures> {
    let (name, steps, agent) = match load.shape {
        Shape::Serial(steps) => ("serial", steps, "echo"),
        Shape::FanOut(steps) => ("fan-out", steps, "echo"),
        Shape::Queue(steps) => ("queue", steps, "pull"),
        Shape::QueueNext(steps) => ("queue-next", steps, "pull"),
        Shape::Batch(steps) => ("batch", steps, "pull"),
        Shape::BatchNext(steps) => ("batch-next", steps, "pull"),
        Shape::Process(steps) => ("process", steps, "child"),
    };
    let input = json!({ "steps": steps, "fan_out": name == "fan-out", "agent": agent,
        "payload": "x".repeat(PAYLOAD) });
    let body = json!({ "blueprint": "load", "input": input, "wait": "60s" }).to_string();
    let body: Rc<str> = body.into();
    let tally = Rc::new(Tally::default());
    let mut clients = Vec::new();
    for token in tokens.iter().take(load.concurrency) {
        clients.push(Client::connect(daemon.address(), token).await?);
    }
    let rows_before = daemon.journal_rows()?;
    let cpu_before = daemon.cpu();
    let set = LocalSet::new();
    let stop = Rc::new(Cell::new(false));
    let mut workers = Vec::new();
    if let Shape::Queue(_) | Shape::QueueNext(_) = load.shape {
        for token in tokens.iter().take(load.concurrency) {
            let (client, stop) =
                (Client::connect(daemon.address(), token).await?, Rc::clone(&stop));
            workers.push(match load.shape {
                Shape::Queue(_) => set.spawn_local(worker::serve_queue(client, stop)),
                _ => set.spawn_local(worker::serve_in_turn(client, 1, stop)),
            });
        }
    }
    if let Shape::BatchNext(_) = load.shape {
        for _ in 0..2 {
            let client = Client::connect(daemon.address(), &tokens[0]).await?;
            workers.push(set.spawn_local(worker::serve_in_turn(client, 50, Rc::clone(&stop))));
        }
    }
    if let Shape::Batch(_) = load.shape {
        let leases = Client::connect(daemon.address(), &tokens[0]).await?;
        let results = Client::connect(daemon.address(), &tokens[0]).await?;
        let serve = worker::serve_in_batches(leases, results, Rc::clone(&stop));
        workers.push(set.spawn_local(serve));
    }
    let began = Instant::now();
    let runs: Vec<_> = clients
        .into_iter()
        .map(|client| {
            set.spawn_local(one(client, Rc::clone(&body), *load, began, Rc::clone(&tally)))
        })
        .collect();
    set.run_until(async {
        for run in runs {
            run.await?;
        }
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = daemon.cpu().zip(cpu_before).map(|(after, before)| after - before);
    let rows = daemon.journal_rows()?.zip(rows_before).map(|(after, before)| after - before);
    stop.set(true);
    set.run_until(async {
        for worker in workers {
            worker.await??;
        }
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let mut times = tally.times_us.take();
    times.sort_unstable();
    let runs = times.len();
    let at = |share: f64| {
        let index = (runs as f64 * share) as usize;
        times.get(index.min(runs.saturating_sub(1))).map_or(0.0, |us| f64::from(*us) / 1e3)
    };
    Ok(Figures {
        load: name,
        steps,
        concurrency: load.concurrency,
        runs,
        errors: tally.errors.get(),
        runs_s: runs as f64 / seconds,
        steps_s: (runs * steps) as f64 / seconds,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        rows_per_step: rows.map(|rows| rows as f64 / (runs * steps).max(1) as f64),
        cpu_us_per_step: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / (runs * steps).max(1) as f64),
        rss_bytes: daemon.rss(),
    })
}

async fn one(mut client: Client, body: Rc<str>, load: Load, began: Instant, tally: Rc<Tally>) {
    loop {
        let over = match load.until {
            Until::Runs(runs) => tally.started.get() >= runs,
            Until::Time(time) => began.elapsed() >= time,
        };
        if over {
            return;
        }
        tally.started.set(tally.started.get() + 1);
        let sent = Instant::now();
        match client.send("POST", "/v1/runs", &body).await {
            Ok((201, answer)) if find(answer, b"\"status\":\"completed\"").is_some() => {
                let us = u32::try_from(sent.elapsed().as_micros()).unwrap_or(u32::MAX);
                tally.times_us.borrow_mut().push(us);
            }
            Ok((status, answer)) => {
                if tally.errors.get() == 0 {
                    eprintln!("{status} {}", String::from_utf8_lossy(answer));
                }
                tally.errors.set(tally.errors.get() + 1);
            }
            Err(error) => {
                eprintln!("{error:#}");
                tally.errors.set(tally.errors.get() + 1);
                return;
            }
        }
    }
}
