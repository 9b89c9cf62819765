//! The cost of lists, sums and pages with very many runs: `cargo bench --bench lists`.
//!
//! A loader writes 1,000,000 runs through the store (`-- --runs N` writes another number), a host opens
//! them, and a client asks over HTTP. Each list of runs at p99, the statistics, and the pages of the
//! dashboard that have lists are to stay under 30 ms; the page of a run of 10,000 steps is to begin
//! within 50 ms and to be at most 150 KB; what a run does is to be on 100 open pages within 50 ms at
//! p99, and these pages may cost the run 5 % of its steps a second. It ends with 1 if one of them is
//! over.

#![allow(clippy::disallowed_methods, reason = "a bench measures with the real clock")]

use std::{
    path::Path,
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use moonswarm::{
    host::{Host, HostConfig},
    journal::Dimension,
    protocol::{Failure, Tags},
    store::{Batch, Header, Options, RunStatus, Store, Synchronous, open},
};
use stored_run::stored_run;

#[path = "../tests/support/stored_run.rs"]
mod stored_run;

/// The limit of each figure.
const LIMIT: Duration = Duration::from_millis(30);
/// The limit of the page of a long run, and of what changes on an open page.
const PAGE_LIMIT: Duration = Duration::from_millis(50);
/// The maximum size of the page of a long run, in bytes.
const PAGE_SIZE: usize = 150_000;
/// The open pages, and the changes that they show.
const OPEN: usize = 100;
const CHANGES: usize = 60;
/// The steps of the runs that are watched, and how often each is measured.
const STEPS: usize = 10_000;
const ROUNDS: usize = 5;
/// The share of its time that a run may take longer while it is watched.
const WATCHED: f64 = 0.05;
/// The requests of each kind.
const ASKED: usize = 300;
/// The batches that are on their way at once.
const WINDOW: usize = 4_000;
/// The days over which the runs are spread.
const DAYS: u64 = 60;
const DAY_MS: u64 = 86_400_000;

/// What a run waits for, as its header has it.
const WAITS: &str =
    r#"[{"kind":"signal","subject":{"name":"go"},"since":"2026-01-31T08:00:00.000Z"}]"#;

/// Returns the header of a run: one in a hundred waits, one in twenty failed.
fn header(num: u64, runs: u64, now_ms: u64) -> Header {
    let created_ms = now_ms - DAYS * DAY_MS + num * (DAYS * DAY_MS / runs.max(1));
    let status = match num % 100 {
        0 => RunStatus::Waiting,
        1..=5 => RunStatus::Failed,
        _ => RunStatus::Completed,
    };
    let failure = || Failure::new("timeout", format!("the disk of machine{} is full", num % 997));
    let tags = [("customer".to_owned(), format!("c{}", num % 500))].into();
    Header {
        num,
        created_ms,
        nonce: num + 1,
        blueprint: format!("b{}", num % 40),
        hash: "ab".repeat(32),
        status,
        status_text: None,
        progress: None,
        cursor: 0,
        seq: 0,
        steps: 3,
        steps_done: 3,
        wake_at_ms: None,
        epoch: 1,
        parent: None,
        principal: format!("team{}", num % 20),
        updated_ms: created_ms + 2_000,
        ended_ms: (status != RunStatus::Waiting).then_some(created_ms + 2_000),
        error: (status == RunStatus::Failed)
            .then(|| serde_json::to_string(&failure()).expect("a failure is plain data")),
        waiting_on: (status == RunStatus::Waiting).then(|| WAITS.to_owned()),
        bytes: 0,
        tags: Tags::new(tags).expect("a tag"),
        used: None,
    }
}

fn batch(store: &dyn Store, header: Header, tell: mpsc::Sender<bool>) -> Batch {
    let counted =
        [(Dimension::Blueprint, "", 2_000 + header.num % 5_000), (Dimension::Agent, "coder", 900)];
    let (run, writes) = stored_run(store, header, &counted);
    let ack = Box::new(move |result: Result<(), _>| {
        // Nobody waits any more if the loader has failed.
        let _ = tell.send(result.is_ok());
    });
    Batch { checks: Vec::new(), run: Some(run), writes, ack }
}

/// Writes the runs. Not every commit waits for the disk: what is measured comes later.
async fn load(data: &Path, runs: u64, now_ms: u64) {
    let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
    let opened = open(data, &options, None).expect("a store");
    let (tell, told) = mpsc::channel();
    let mut waiting = 0;
    for _ in 0..runs {
        let num = opened.store.next_run();
        opened.store.room().await;
        opened.store.submit(batch(&*opened.store, header(num, runs, now_ms), tell.clone()));
        waiting += 1;
        if waiting > WINDOW {
            assert!(told.recv().expect("the store acknowledges"), "a run was refused");
            waiting -= 1;
        }
    }
    for _ in 0..waiting {
        assert!(told.recv().expect("the store acknowledges"), "a run was refused");
    }
    opened.upkeep.close().expect("the store closes");
}

/// Returns the time of a share of the requests.
fn share(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let at = (times.len() as f64 * share).ceil() as usize;
    times[at.clamp(1, times.len()) - 1]
}

async fn asked(client: &reqwest::Client, host: &Host, path: &str) -> (Duration, serde_json::Value) {
    let request = client.get(format!("{}{path}", host.url())).bearer_auth(host.admin_token());
    let since = Instant::now();
    let answer = request.send().await.expect("an answer");
    let (status, body) = (answer.status(), answer.text().await.expect("a body"));
    let took = since.elapsed();
    assert!(status.is_success(), "{path}: {status} {body}");
    (took, serde_json::from_str(&body).expect("JSON"))
}

/// A browser that is signed in.
struct Browser {
    client: reqwest::Client,
    url: String,
    cookie: String,
}

impl Browser {
    async fn of(host: &Host) -> Self {
        let client = moonswarm::environment::http_client()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        let url = host.url().to_owned();
        let login = client.post(format!("{url}/ui/login")).header("origin", &url);
        let login = login
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("next=%2Fui&token={}", host.admin_token()));
        let answer = login.send().await.expect("an answer");
        let cookie = answer.headers()["set-cookie"].to_str().expect("a cookie");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Self { client, url, cookie }
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        let request = self.client.get(format!("{}{path}", self.url)).header("cookie", &self.cookie);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer
    }

    /// Returns the times to the head of the answer and to its end, and the size.
    async fn page(&self, path: &str) -> (Duration, Duration, usize) {
        let since = Instant::now();
        let answer = self.get(path).await;
        let head = since.elapsed();
        let size = answer.bytes().await.expect("a page").len();
        (head, since.elapsed(), size)
    }
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

async fn started(host: &Host, client: &reqwest::Client, source: &str) -> String {
    let body = serde_json::json!({ "source": source });
    let request = client.post(format!("{}/v1/runs", host.url())).bearer_auth(host.admin_token());
    let answer = request.json(&body).send().await.expect("an answer");
    let view: serde_json::Value = answer.json().await.expect("JSON");
    view["id"].as_str().unwrap_or_else(|| panic!("{view}")).to_owned()
}

/// Opens each tab of a run of 10,000 steps.
async fn long_run(host: &Host, client: &reqwest::Client, browser: &Browser) -> bool {
    let source = r#"return require("swarm").blueprint { name = "long", agents = { echo = { operator = "echo" } },
        flow = function(ctx) for i = 1, 10000 do ctx:run("echo", i) end end }"#;
    let run = started(host, client, source).await;
    asked(client, host, &format!("/v1/runs/{run}?wait=60s")).await;
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

/// Returns the time at which an open page shows each change.
async fn watch(
    browser: &Browser,
    path: &str,
    seen: tokio::sync::mpsc::UnboundedSender<(usize, Instant)>,
) {
    let mut answer = browser.get(path).await;
    let (mut text, mut next) = (String::new(), 0);
    while let Ok(Some(chunk)) = answer.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
        while let Some(at) = text.find(&format!("tick {next}.")) {
            text.drain(..at);
            // The bench may be over.
            let _ = seen.send((next, Instant::now()));
            next += 1;
        }
        if text.len() > 1 << 20 {
            let cut = (1 << 19..).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.drain(..cut);
        }
    }
}

/// Measures how soon 100 open pages show what a run does, from the answer to the signal that moved it.
async fn open_pages(
    host: &Host,
    client: &reqwest::Client,
    browser: &std::sync::Arc<Browser>,
) -> bool {
    let source = r#"return require("swarm").blueprint { name = "ticks",
        flow = function(ctx) for i = 0, 100000 do ctx:status("tick " .. i .. ".") ctx:wait("go") end end }"#;
    let run = started(host, client, source).await;
    let path = format!("/ui/live/runs/{run}?tab=steps");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..OPEN {
        let (browser, path, tell) = (std::sync::Arc::clone(browser), path.clone(), tell.clone());
        tokio::spawn(async move { watch(&browser, &path, tell).await });
    }
    let mut times = Vec::new();
    let mut committed = Instant::now();
    for change in 0..CHANGES {
        let mut waiting = OPEN;
        while waiting > 0 {
            let (shown, at) = told.recv().await.expect("the pages are open");
            if shown == change {
                waiting -= 1;
                times.extend((change > 0).then(|| at.saturating_duration_since(committed)));
            }
        }
        // A page has to come to rest before the next change, as those that people watch do.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let signal = format!("{}/v1/runs/{run}/signals/go", host.url());
        let signal = client.post(signal).bearer_auth(host.admin_token()).json(&1);
        assert!(signal.send().await.expect("an answer").status().is_success());
        committed = Instant::now();
    }
    figure(&format!("a change on {OPEN} open pages"), &mut times, PAGE_LIMIT, "")
}

/// The pages that are open while a run goes on.
#[derive(Clone, Copy, PartialEq)]
enum Pages {
    None,
    /// All are rendered at once.
    Shared,
    /// Each is a page of its own.
    Apart,
}

/// Returns the time of a run of many steps while pages of it are open.
async fn watched(
    host: &Host,
    client: &reqwest::Client,
    browser: &std::sync::Arc<Browser>,
    pages: Pages,
) -> Duration {
    let source = format!(
        r#"return require("swarm").blueprint {{ name = "watched", agents = {{ echo = {{ operator = "echo" }} }},
        flow = function(ctx) ctx:wait("go") for i = 1, {STEPS} do ctx:run("echo", i) end end }}"#
    );
    let run = started(host, client, &source).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let open = if pages == Pages::None { 0 } else { OPEN };
    for n in 0..open {
        let (browser, tell) = (std::sync::Arc::clone(browser), tell.clone());
        // The parameter is of another tab: it makes a page of its own, and changes nothing in it.
        let apart = if pages == Pages::Apart { format!("&skip={n}") } else { String::new() };
        let path = format!("/ui/live/runs/{run}?tab=steps{apart}");
        tokio::spawn(async move {
            let mut answer = browser.get(&path).await;
            let mut is_open = false;
            while let Ok(Some(_)) = answer.chunk().await {
                if !std::mem::replace(&mut is_open, true) {
                    // The bench may be over.
                    let _ = tell.send(());
                }
            }
        });
    }
    for _ in 0..open {
        told.recv().await.expect("the pages are open");
    }
    let since = Instant::now();
    let signal = client.post(format!("{}/v1/runs/{run}/signals/go", host.url()));
    let signal = signal.bearer_auth(host.admin_token()).json(&1).send().await;
    assert!(signal.expect("an answer").status().is_success());
    asked(client, host, &format!("/v1/runs/{run}?wait=60s")).await;
    since.elapsed()
}

/// Measures what open pages cost a run: its steps a second, as a share of those without pages.
async fn cost_of_pages(
    host: &Host,
    client: &reqwest::Client,
    browser: &std::sync::Arc<Browser>,
) -> bool {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    // In turns, so that whatever else the machine does meets all of them.
    for _ in 0..ROUNDS {
        for (times, pages) in times.iter_mut().zip([Pages::None, Pages::Shared, Pages::Apart]) {
            times.push(watched(host, client, browser, pages).await);
        }
    }
    let [none, shared, apart] = times.map(|mut times| share(&mut times, 0.5).as_secs_f64());
    let (fall, alone) = (1.0 - none / shared, 1.0 - none / apart);
    let verdict = if fall <= WATCHED { "ok  " } else { "OVER" };
    println!(
        "{verdict} a run of {STEPS} steps with {OPEN} open pages: {:.1} % fewer steps a second; {:.1} % if \
         each page is rendered by itself",
        fall * 100.0,
        alone * 100.0
    );
    fall <= WATCHED
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    // Cargo says so to what it benches; to build and list tests measures nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let given = args.iter().position(|arg| arg == "--runs").and_then(|at| args.get(at + 1));
    let runs: u64 = given.map_or(1_000_000, |text| text.parse().expect("a number of runs"));
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = u64::try_from(now_ms.expect("a clock").as_millis()).expect("a time");
    // The system's temporary directory may be memory; the disk that counts is the build's.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let since = Instant::now();
    load(data.path(), runs, now_ms).await;
    println!("{runs} runs were written in {:.1?}", since.elapsed());
    let config = HostConfig {
        retention: moonswarm::engine::Retention::FOR_EVER,
        // The waiting runs have no program; they are only listed.
        recover: false,
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await.expect("a host");
    let client = moonswarm::environment::http_client().build().expect("a client");
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
            let (took, body) = asked(&client, &host, &query).await;
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
    let browser = std::sync::Arc::new(Browser::of(&host).await);
    good &= lists_as_pages(&browser).await;
    good &= long_run(&host, &client, &browser).await;
    good &= open_pages(&host, &client, &browser).await;
    good &= cost_of_pages(&host, &client, &browser).await;
    host.stop(Duration::from_secs(5)).await;
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
