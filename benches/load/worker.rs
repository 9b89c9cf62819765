//! Work that leaves the process: pull workers that lease and report, and the worker API by itself.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::json as object;
use tokio::{sync::Notify, task::LocalSet};

use crate::{
    client::{Client, json},
    daemon::Daemon,
    drive,
};

/// Connections, each a worker.
const WORKERS: usize = 64;
/// Tasks that one run puts into the queue.
const TASKS: usize = 1_000;
/// Tasks that one lease may bring.
const LEASE: usize = 64;

/// The speed of one sort of request.
#[derive(Serialize)]
pub struct Rate {
    /// The sort of request.
    pub name: &'static str,
    /// Requests a second, or results where a request has many.
    pub per_second: f64,
    /// Half of them took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 took no longer, in milliseconds.
    pub p99_ms: f64,
    /// Processor time of the daemon for each of them, in microseconds.
    pub cpu_us: Option<f64>,
    /// Requests that failed.
    pub errors: usize,
}

/// Leases the tasks of a queue and reports each, until told to stop.
pub async fn serve_queue(mut client: Client, stop: Rc<Cell<bool>>) -> Result<()> {
    let body = object!({ "queue": "load", "wait": "1s", "max": 1 }).to_string();
    while !stop.get() {
        let leased = client.send("POST", "/v1/worker/lease", &body).await?;
        for handle in handles(&json(leased)?) {
            let sent = client.send_as(&handle, "POST", "/v1/worker/result", RESULT).await?;
            json(sent).context("report")?;
        }
    }
    Ok(())
}

/// Leases up to `max` tasks at a time; reports them and leases the next ones in the same request,
/// until told to stop.
pub async fn serve_in_turn(mut client: Client, max: usize, stop: Rc<Cell<bool>>) -> Result<()> {
    let body = object!({ "queue": "load", "wait": "1s", "max": max }).to_string();
    let next = object!({ "queue": "load", "max": max });
    while !stop.get() {
        let mut leased = handles(&json(client.send("POST", "/v1/worker/lease", &body).await?)?);
        while !leased.is_empty() {
            let body = format!(r#"{{"results":[{}],"lease":{next}}}"#, items(&leased));
            let answer = json(client.send("POST", "/v1/worker/results", &body).await?)?;
            all_accepted(&answer)?;
            leased = handles(&answer["leased"]);
        }
    }
    Ok(())
}

/// Leases many tasks at a time and reports them together, while it leases the next, until told to
/// stop.
pub async fn serve_in_batches(
    mut leases: Client,
    mut results: Client,
    stop: Rc<Cell<bool>>,
) -> Result<()> {
    let (done, came) = (RefCell::new(Vec::new()), Notify::new());
    let lease = async {
        let body = object!({ "queue": "load", "wait": "1s", "max": 100 }).to_string();
        while !stop.get() {
            let leased = leases.send("POST", "/v1/worker/lease", &body).await?;
            done.borrow_mut().extend(handles(&json(leased)?));
            came.notify_one();
        }
        came.notify_one();
        Ok::<_, anyhow::Error>(())
    };
    let report = async {
        while !stop.get() || !done.borrow().is_empty() {
            let handles: Vec<String> = done.take();
            if handles.is_empty() {
                came.notified().await;
                continue;
            }
            let body = format!(r#"{{"results":[{}]}}"#, items(&handles));
            all_accepted(&json(results.send("POST", "/v1/worker/results", &body).await?)?)?;
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::try_join!(lease, report).map(drop)
}

const RESULT: &str = r#"{"output":{"done":true}}"#;

fn items(handles: &[String]) -> String {
    let items = handles.iter();
    let items = items.map(|it| format!(r#"{{"handle":"{it}","result":{RESULT}}}"#));
    items.collect::<Vec<_>>().join(",")
}

fn all_accepted(answer: &serde_json::Value) -> Result<()> {
    let refused = answer["items"].as_array().context("items")?.iter();
    let refused = refused.filter(|it| it["accepted"] != true).count();
    ensure!(refused == 0, "{refused} results were refused: {answer}");
    Ok(())
}

fn handles(leased: &serde_json::Value) -> Vec<String> {
    let items = leased.as_array().map_or(&[][..], Vec::as_slice);
    items.iter().filter_map(|item| Some(item["handle"].as_str()?.to_owned())).collect()
}

/// Prompt by handle, prompt by JWT, and results, each over 64 connections; and results of many
/// tasks a request over two.
pub async fn measure(
    daemon: &Daemon,
    tokens: &[String],
    binary_time: Duration,
) -> Result<Vec<Rate>> {
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let results = (binary_time.as_secs_f64() * 12_000.0) as usize / TASKS * TASKS + TASKS;
    let handles = lease_all(daemon, &mut client, tokens, results).await?;
    // The first connection may have been idle for longer than the daemon keeps one.
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let mut minted = Vec::with_capacity(WORKERS);
    for handle in &handles[..WORKERS] {
        let token = json(client.send_as(handle, "POST", "/v1/worker/token", "{}").await?)?;
        minted.push(token["token"].as_str().context("a token")?.to_owned());
    }
    let reported_alone = handles.len() / 2;
    let until = Until::Time(binary_time);
    let prompt = ("GET", "/v1/worker/prompt", "");
    let report = ("POST", "/v1/worker/result", RESULT);
    Ok(vec![
        hammer("prompt by handle", daemon, &handles[..WORKERS], prompt, until).await?,
        hammer("prompt by JWT", daemon, &minted, prompt, until).await?,
        hammer("result", daemon, &handles[..reported_alone], report, Until::Once).await?,
        report_many(daemon, &handles[reported_alone..]).await?,
    ])
}

/// Reports the results of many tasks in each request; the times are those of requests.
async fn report_many(daemon: &Daemon, handles: &[String]) -> Result<Rate> {
    let requests = Rc::new(RefCell::new(handles.chunks(LEASE).map(items).collect::<Vec<_>>()));
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(Client::connect(daemon.address(), daemon.token()).await?);
    }
    let times = Rc::new(RefCell::new(Vec::new()));
    let (cpu_before, began) = (daemon.cpu(), Instant::now());
    let senders = clients.into_iter().map(|mut client| {
        let (requests, times) = (Rc::clone(&requests), Rc::clone(&times));
        async move {
            loop {
                let items = requests.borrow_mut().pop();
                let Some(items) = items else { return Ok(()) };
                let (sent, body) = (Instant::now(), format!(r#"{{"results":[{items}]}}"#));
                all_accepted(&json(client.send("POST", "/v1/worker/results", &body).await?)?)?;
                times.borrow_mut().push(sent.elapsed());
            }
        }
    });
    drive::together(senders.collect::<Vec<_>>()).await?;
    let cpu = daemon.cpu().zip(cpu_before).map(|(after, before)| after - before);
    let times = times.take();
    Ok(rate("result, 64 a request", handles.len(), times, began.elapsed(), cpu, 0))
}

/// Fills the queue and takes everything out of it.
async fn lease_all(
    daemon: &Daemon,
    client: &mut Client,
    tokens: &[String],
    tasks: usize,
) -> Result<Vec<String>> {
    let body = object!({ "blueprint": "load", "input": {
        "steps": TASKS, "fan_out": true, "agent": "pull", "payload": "x".repeat(256) } });
    let body = body.to_string();
    for _ in 0..tasks / TASKS {
        json(client.send("POST", "/v1/runs", &body).await?).context("start a run")?;
    }
    let all = Rc::new(RefCell::new(Vec::with_capacity(tasks)));
    let set = LocalSet::new();
    let failed = Rc::new(RefCell::new(None));
    for token in tokens.iter().take(WORKERS) {
        let mut client = Client::connect(daemon.address(), token).await?;
        let (all, failed) = (Rc::clone(&all), Rc::clone(&failed));
        set.spawn_local(async move {
            let body = object!({ "queue": "load", "wait": "2s", "max": LEASE }).to_string();
            while all.borrow().len() < tasks {
                let leased = client.send("POST", "/v1/worker/lease", &body).await.and_then(json);
                match leased {
                    Ok(leased) => all.borrow_mut().extend(handles(&leased)),
                    Err(error) => {
                        failed.borrow_mut().get_or_insert(error);
                        return;
                    }
                }
            }
        });
    }
    set.await;
    if let Some(error) = failed.take() {
        return Err(error.context("lease"));
    }
    let all = all.take();
    ensure!(all.len() == tasks, "{} of {tasks} tasks were leased", all.len());
    // Reported across the runs, as workers of many runs do.
    let runs = tasks / TASKS;
    Ok((0..tasks).map(|n| all[n % runs * TASKS + n / runs].clone()).collect())
}

#[derive(Clone, Copy)]
enum Until {
    /// Each bearer asks again and again for so long.
    Time(Duration),
    /// Each bearer asks once.
    Once,
}

async fn hammer(
    name: &'static str,
    daemon: &Daemon,
    bearers: &[String],
    (method, path, body): (&'static str, &'static str, &'static str),
    until: Until,
) -> Result<Rate> {
    let times = Rc::new(RefCell::new(Vec::new()));
    let errors = Rc::new(Cell::new(0));
    let queue = Rc::new(RefCell::new(bearers.to_vec()));
    let mut clients = Vec::new();
    for _ in 0..WORKERS {
        clients.push(Client::connect(daemon.address(), daemon.token()).await?);
    }
    let cpu_before = daemon.cpu();
    let set = LocalSet::new();
    let began = Instant::now();
    for mut client in clients {
        let (times, errors) = (Rc::clone(&times), Rc::clone(&errors));
        let queue = Rc::clone(&queue);
        set.spawn_local(async move {
            loop {
                let Some(bearer) = queue.borrow_mut().pop() else { return };
                loop {
                    let sent = Instant::now();
                    match client.send_as(&bearer, method, path, body).await.and_then(json) {
                        Ok(_) => times.borrow_mut().push(sent.elapsed()),
                        Err(error) => {
                            if errors.get() == 0 {
                                eprintln!("{error:#}");
                            }
                            errors.set(errors.get() + 1);
                        }
                    }
                    match until {
                        Until::Time(time) if began.elapsed() < time => {}
                        Until::Time(_) => return,
                        Until::Once => break,
                    }
                }
            }
        });
    }
    set.await;
    let took = began.elapsed();
    let cpu = daemon.cpu().zip(cpu_before).map(|(after, before)| after - before);
    let times = times.take();
    Ok(rate(name, times.len(), times, took, cpu, errors.get()))
}

fn rate(
    name: &'static str,
    done: usize,
    mut times: Vec<Duration>,
    took: Duration,
    cpu: Option<Duration>,
    errors: usize,
) -> Rate {
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    Rate {
        name,
        per_second: done as f64 / took.as_secs_f64(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / done.max(1) as f64),
        errors,
    }
}
