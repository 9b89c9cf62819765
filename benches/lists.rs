//! What lists and sums cost with very many runs: `cargo bench --bench lists`.
//!
//! A loader writes 1,000,000 runs through the store (`-- --runs N` writes another number), a host opens
//! them, and a client asks over HTTP: each list of runs at p99, and the statistics, is to stay under 30
//! ms. It ends with 1 if one of them is over.

#![allow(clippy::disallowed_methods, reason = "a bench measures with the real clock")]

use std::{
    path::Path,
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use moonswarm::{
    host::{Host, HostConfig},
    journal::{Dimension, Ending, Entry, Fact, RunStarted, Tally},
    protocol::{Failure, Json, Tags},
    store::{
        Batch, CountedRun, Header, JournalRow, Options, RunStatus, RunWrite, Store, Synchronous,
        Write, open,
    },
};

/// The limit of each figure.
const LIMIT: Duration = Duration::from_millis(30);
/// The requests of each kind.
const ASKED: usize = 300;
/// The batches that are on their way at once.
const WINDOW: usize = 4_000;
/// The days over which the runs are spread.
const DAYS: u64 = 60;
const DAY_MS: u64 = 86_400_000;

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
        waiting_on: (status == RunStatus::Waiting).then(|| r#"["signal"]"#.to_owned()),
        bytes: 0,
        tags: Tags::new(tags).expect("a tag"),
        used: None,
    }
}

fn batch(store: &dyn Store, mut header: Header, tell: mpsc::Sender<bool>) -> Batch {
    let started = Fact::RunStarted(Box::new(RunStarted {
        first_step: 1,
        grant: Json::null(),
        blueprint: header.blueprint.clone(),
        hash: header.hash.clone(),
        input: Json::null(),
        trigger: Json::null(),
        seed: 7,
        parent: None,
        depth: 0,
        workdir: None,
        principal: header.principal.clone(),
        delegate: None,
        generation: 0,
        queued: vec![],
        continues: None,
    }));
    (header.cursor, header.seq) = (store.next_lsn(), 1);
    let entry = Entry::new(1, header.created_ms, started);
    let row = JournalRow::new(header.num, header.cursor, None, &entry);
    header.bytes = row.bytes.len() as u64;
    let mut writes = Vec::new();
    if let Some(ended_ms) = header.ended_ms {
        let ending = match header.status {
            RunStatus::Failed => Ending::Failed,
            _ => Ending::Completed,
        };
        let mut tally = Tally::default();
        tally.at(ended_ms, Dimension::Blueprint, "", ending).end(2_000 + header.num % 5_000);
        tally.at(ended_ms, Dimension::Agent, "coder", ending).end(900);
        writes.push(Write::CountRun(Box::new(CountedRun {
            run: header.num,
            created_ms: header.created_ms,
            ended_ms,
            blueprint: header.blueprint.clone(),
            ending,
            tally,
        })));
    }
    let run = RunWrite { header, expected: None, entries: vec![row], whole: true };
    let ack = Box::new(move |result: Result<(), _>| {
        // Nobody waits any more if the loader has failed.
        drop(tell.send(result.is_ok()));
    });
    Batch { checks: Vec::new(), run: Some(run), writes, ack }
}

/// Writes the runs. Not every commit waits for the disk: what is measured comes later.
async fn load(data: &Path, runs: u64, now_ms: u64) {
    let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
    let opened = open(data, &options).expect("a store");
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
    let client = reqwest::Client::new();
    let month = jiff::Timestamp::from_millisecond((now_ms - 30 * DAY_MS) as i64).expect("a time");
    let lists = [
        ("newest", "/v1/runs?limit=50".to_owned()),
        ("of a status", "/v1/runs?limit=50&status=failed".to_owned()),
        ("completed", "/v1/runs?limit=50&status=completed".to_owned()),
        ("waiting", "/v1/runs?limit=50&status=waiting&waiting_on=signal".to_owned()),
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
        let (p50, p99) = (share(&mut times, 0.5), share(&mut times, 0.99));
        let holds = p99 <= LIMIT;
        good &= holds;
        let verdict = if holds { "ok  " } else { "OVER" };
        println!("{verdict} {what} ({path}): {items} items, p50 {p50:.1?}, p99 {p99:.1?}");
    }
    host.stop(Duration::from_secs(5)).await;
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
