//! Fairness: runs that take turns, commits and memory away from their neighbours.

use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::support::{Daemon, eventually, send, when};

/// Runs that flood at a time, all of them on the neighbour's shard.
const FLOODS: usize = 4;
/// Small runs beside them.
const SMALL: usize = 15;
/// How soon a small run has to be over here, and a cancel to take effect: the promise is a tenth of
/// it, on a quiet machine; `benches/load` holds that.
const SOON: Duration = Duration::from_millis(if cfg!(debug_assertions) { 3_000 } else { 1_000 });

/// Each never ends by itself before a limit of a hundred thousand steps.
const KINDS: &[(&str, &str)] = &[
    ("continue_as", "ctx:continue_as({})"),
    ("artifacts", r#"while true do ctx:artifact("a.txt", "x") end"#),
    ("state", r#"local n = 0 while true do n = n + 1 ctx.state:set("k" .. n % 100, n) end"#),
    ("sleep", r#"while true do ctx:sleep("0s") end"#),
    ("wait", r#"while true do ctx:wait("never", { timeout = "0s" }) end"#),
    ("echo", r#"while true do ctx:run("e", 1) end"#),
];

fn blueprint(name: &str, flow: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"{name}\", \
         agents = {{ e = {{ operator = \"echo\" }} }}, flow = function(ctx) {flow} end }}"
    )
}

fn one_shard(data: &std::path::Path) -> Daemon {
    Daemon::start_with(data, &["--shards".as_ref(), "1".as_ref() as &OsStr])
}

async fn publish(daemon: &Daemon, name: &str, flow: &str) {
    let body = json!({ "source": blueprint(name, flow) });
    let (status, answer) = send(daemon.put(&format!("/v1/blueprints/{name}"), &body)).await;
    assert!(status < 300, "{answer}");
}

/// Starts a small run, waits for its end, and says how long that took.
async fn small(daemon: &Daemon) -> Duration {
    let began = Instant::now();
    let body = json!({ "blueprint": "small", "input": {}, "wait": "30s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!((status, &view["status"]), (201, &json!("completed")), "{view}\n{}", daemon.log());
    began.elapsed()
}

async fn flood(daemon: &Daemon) -> Vec<String> {
    let mut runs = Vec::new();
    for _ in 0..FLOODS {
        let body = json!({ "blueprint": "flood", "input": {} });
        let (status, view) = send(daemon.post("/v1/runs", &body)).await;
        assert_eq!(status, 201, "{view}");
        runs.push(view["id"].as_str().unwrap().to_owned());
    }
    runs
}

/// Lets runs of one kind flood, and looks at whoever else is there.
async fn beside(kind: &str, flow: &str) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = one_shard(&dir.path().join("data"));
    publish(&daemon, "small", "return ctx:run(\"e\", 1)").await;
    publish(&daemon, "flood", flow).await;
    small(&daemon).await;
    let alone = small(&daemon).await;
    let runs = flood(&daemon).await;
    let mut times = Vec::new();
    for _ in 0..SMALL {
        times.push(small(&daemon).await);
    }
    times.sort_unstable();
    let (half, worst) = (times[SMALL / 2], times[SMALL - 1]);
    let mut canceled = Duration::ZERO;
    for run in &runs[1..] {
        let began = Instant::now();
        let path = format!("/v1/runs/{run}/cancel");
        let (status, view) = send(daemon.post(&path, &json!({ "reason": "enough" }))).await;
        // One that met its limit meanwhile has ended.
        assert!(status == 200 || view["code"] == "run_closed", "{kind}: {status} {view}");
        canceled = canceled.max(began.elapsed());
    }
    let began = Instant::now();
    let code = daemon.stop();
    let stopped = began.elapsed();
    println!(
        "{kind}: a small run takes {alone:.0?} alone, {half:.0?} (half) and {worst:.0?} (worst) \
         beside {FLOODS}; a cancel takes {canceled:.0?}, the end {stopped:.0?}"
    );
    assert!(worst <= SOON, "{kind}: a neighbour took {worst:?}");
    assert!(canceled <= SOON, "{kind}: a cancel took {canceled:?}");
    assert_eq!(code, Some(0), "{kind}: it did not end in order");
    assert!(stopped <= Duration::from_secs(10), "{kind}: it took {stopped:?} to end");
}

#[tokio::test]
async fn a_flood_of_fresh_histories_keeps_nobody_waiting() {
    beside(KINDS[0].0, KINDS[0].1).await;
}

#[tokio::test]
async fn a_flood_of_files_or_of_state_keeps_nobody_waiting() {
    for (kind, flow) in &KINDS[1..3] {
        beside(kind, flow).await;
    }
}

#[tokio::test]
async fn a_flood_of_waits_that_are_over_at_once_keeps_nobody_waiting() {
    for (kind, flow) in &KINDS[3..5] {
        beside(kind, flow).await;
    }
}

#[tokio::test]
async fn a_flood_of_steps_keeps_nobody_waiting() {
    beside(KINDS[5].0, KINDS[5].1).await;
}

async fn view(daemon: &Daemon, run: &str) -> Value {
    let (status, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!(status, 200, "{view}");
    view
}

#[tokio::test]
async fn fresh_histories_without_end_take_no_memory_and_go_on_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = one_shard(&data);
    publish(&daemon, "flood", KINDS[0].1).await;
    let runs = flood(&daemon).await;
    // Every event is a fresh history: so many of them have to be seen to go by.
    let histories = |view: &Value| view["updated_at"].as_str().unwrap().to_owned();
    let mut seen = [String::new(), String::new()];
    let mut resident = [0, 0];
    for round in 0..2 {
        for _ in 0..40 {
            let path = format!("/v1/runs/{}?wait=50ms", runs[0]);
            let (_, view) = send(daemon.get(&path)).await;
            assert_eq!(view["ended_at"], Value::Null, "{view}");
            seen[round] = histories(&view);
        }
        resident[round] = daemon.resident();
    }
    let [first, second] = resident.map(|bytes| bytes >> 20);
    println!("{first} MiB, and {second} MiB two seconds later");
    assert_ne!(seen[0], seen[1], "it goes on");
    assert!(second <= first + 48, "{first} MiB, then {second} MiB");
    daemon.kill();
    let daemon = one_shard(&data);
    let before = histories(&view(&daemon, &runs[0]).await);
    eventually("the run goes on", async || {
        when(histories(&view(&daemon, &runs[0]).await) != before, daemon.log())
    })
    .await;
    let path = format!("/v1/runs/{}/cancel", runs[0]);
    let (status, canceled) = send(daemon.post(&path, &json!({ "reason": "enough" }))).await;
    assert_eq!((status, &canceled["status"]), (200, &json!("canceled")), "{canceled}");
}
