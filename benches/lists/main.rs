//! The cost of lists, sums and pages with very many runs: `cargo bench --bench lists`.
//!
//! A loader writes 1,000,000 runs through the store (`-- --runs N` writes another number), a host opens
//! them, and a client asks over HTTP. Each list of runs at p99, the statistics, and the pages of the
//! dashboard that have lists are to stay under 30 ms; the page of a run of 10,000 steps is to begin
//! within 50 ms and to be at most 150 KB; what a run does is to be on 100 open pages within 50 ms at
//! p99, at 1,000 events a second, and these pages may cost a run 5 % of its steps a second. It ends with
//! 1 if one of them is over. `-- --only lists`, `pages` or `live` measures a part.

#![allow(clippy::disallowed_methods, reason = "a bench measures with the real clock")]

#[path = "../../tests/support/stored_run.rs"]
mod stored_run;

mod client;
mod live;
mod stored;

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Browser, Daemon, SERVE};
use stored::DAY_MS;

/// The limit of each figure.
const LIMIT: Duration = Duration::from_millis(30);
/// The limit of the page of a long run, and of what changes on an open page.
const PAGE_LIMIT: Duration = Duration::from_millis(50);
/// The maximum size of the page of a long run, in bytes.
const PAGE_SIZE: usize = 150_000;
/// The requests of each kind.
const ASKED: usize = 300;
/// Returns the time of a share of the requests.
fn share(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let at = (times.len() as f64 * share).ceil() as usize;
    times[at.clamp(1, times.len()) - 1]
}

/// Prints one figure, and returns true if it holds.
fn figure(what: &str, times: &mut [Duration], limit: Duration, more: &str) -> bool {
    let (p50, p99) = (share(times, 0.5), share(times, 0.99));
    let verdict = if p99 <= limit { "ok  " } else { "OVER" };
    println!("{verdict} {what}: p50 {p50:.1?}, p99 {p99:.1?}{more}");
    p99 <= limit
}

/// Opens the pages that have lists.
async fn lists_as_pages(browser: &Browser) -> bool {
    let mut good = true;
    for path in [
        "/ui",
        "/ui/runs",
        "/ui/runs?status=failed",
        "/ui/runs?blueprint=b7",
        "/ui/runs?tag=customer%3Dc7",
        "/ui/inbox",
        "/ui/usage",
    ] {
        let mut times = Vec::with_capacity(ASKED);
        let mut largest = 0;
        for _ in 0..ASKED {
            let (_, took, size) = browser.page(path).await;
            times.push(took);
            largest = largest.max(size);
        }
        good &= figure(&format!("page {path}"), &mut times, LIMIT, &format!(", {largest} bytes"));
    }
    good
}

/// Opens each tab of a run of 10,000 steps.
async fn long_run(daemon: &Daemon, browser: &Browser) -> bool {
    let source = r#"return require("swarm").blueprint { name = "long", agents = { echo = { operator = "echo" } },
        flow = function(ctx) for i = 1, 10000 do ctx:run("echo", i) end end }"#;
    let run = daemon.started(source).await;
    daemon.completed(&run).await;
    let mut good = true;
    for tab in ["steps", "steps&fold=off", "source", "graph", "events", "log", "data"] {
        let (mut heads, mut largest) = (Vec::new(), 0);
        for _ in 0..ASKED / 6 {
            let (head, _, size) = browser.page(&format!("/ui/runs/{run}?tab={tab}")).await;
            heads.push(head);
            largest = largest.max(size);
        }
        let what = format!("first byte of a run of 10,000 steps, {tab}");
        good &= figure(&what, &mut heads, PAGE_LIMIT, &format!(", {largest} bytes"));
        good &= largest <= PAGE_SIZE;
    }
    good
}

/// Asks for lists of runs and for statistics.
async fn lists(daemon: &Daemon, now_ms: u64) -> bool {
    let month = jiff::Timestamp::from_millisecond((now_ms - 30 * DAY_MS) as i64).expect("a time");
    let lists = [
        ("newest", "/v1/runs?limit=50".to_owned()),
        ("of a status", "/v1/runs?limit=50&status=failed".to_owned()),
        ("completed", "/v1/runs?limit=50&status=completed".to_owned()),
        ("waiting", "/v1/runs?limit=50&status=waiting&waiting_on=signal".to_owned()),
        (
            "waiting for what none waits for",
            "/v1/runs?limit=50&status=waiting&waiting_on=nobody".to_owned(),
        ),
        ("of a blueprint", "/v1/runs?limit=50&blueprint=b7".to_owned()),
        ("of a blueprint and a status", "/v1/runs?limit=50&blueprint=b3&status=failed".to_owned()),
        ("of a tag", "/v1/runs?limit=50&tag=customer%3Dc7".to_owned()),
        ("of a subject", "/v1/runs?limit=50&started_by=team3".to_owned()),
        ("by words", "/v1/runs?limit=50&q=machine42+full".to_owned()),
        ("by a common word", "/v1/runs?limit=50&q=disk".to_owned()),
        ("by the kind of error", "/v1/runs?limit=50&error=timeout".to_owned()),
        ("of an agent that none has", "/v1/runs?limit=50&agent=nobody".to_owned()),
        ("until a month ago", format!("/v1/runs?limit=50&until={month}")),
    ];
    let stats = ["status", "blueprint", "agent", "day", "hour", "run"]
        .map(|by| ("statistics", format!("/v1/stats?by={by}")));
    let mut good = true;
    for (what, path) in lists.iter().chain(&stats) {
        let mut times = Vec::with_capacity(ASKED);
        let (mut query, mut items) = (path.clone(), 0);
        for _ in 0..ASKED {
            let (took, body) = daemon.asked(&query).await;
            times.push(took);
            items = items.max(body["items"].as_array().map_or(0, Vec::len));
            // From page to page, so that old runs are read as well; then from the beginning.
            query = match body["next_cursor"].as_str() {
                Some(cursor) => format!("{path}&cursor={cursor}"),
                None => path.clone(),
            };
        }
        let what = format!("{what} ({path})");
        good &= figure(&what, &mut times, LIMIT, &format!(", {items} items"));
    }
    good
}

/// Returns what follows an argument.
fn given<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).map(String::as_str)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let Some(data) = given(&args, SERVE) {
        client::serve(Path::new(data)).await;
        return ExitCode::SUCCESS;
    }
    // Cargo says so to what it benches; to build and list tests measures nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let runs = given(&args, "--runs").unwrap_or("1000000").parse().expect("a number of runs");
    let only = given(&args, "--only");
    let is_asked = |part| only.is_none_or(|only| only == part);
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = u64::try_from(now_ms.expect("a clock").as_millis()).expect("a time");
    // The system's temporary directory may be memory; the disk that counts is the build's.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let since = Instant::now();
    stored::load(data.path(), runs, now_ms).await;
    println!("{runs} runs were written in {:.1?}", since.elapsed());
    let daemon = Daemon::start(data.path());
    let browser = Arc::new(Browser::of(&daemon).await);
    let mut good = true;
    if is_asked("lists") {
        good &= lists(&daemon, now_ms).await;
    }
    if is_asked("pages") {
        good &= lists_as_pages(&browser).await;
        good &= long_run(&daemon, &browser).await;
    }
    if is_asked("live") {
        good &= live::changes(&daemon, &browser).await;
        good &= live::cost(&daemon, &browser).await;
    }
    daemon.stop();
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
