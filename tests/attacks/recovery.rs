//! Recovery: crash loops, clocks, pauses, and starts that follow a kill.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    shim::Shim,
    support::{
        Daemon, Shell,
        culprit::{Culprit, configuration, with_child},
        elapse, eventually, program, refusal, send, when,
    },
};

/// With the care that a real daemon takes.
const CAREFUL: (&str, &str) = ("MOONSWARM_SAFE_MODE", "on");

/// A run that asks for work by pull workers.
const QUEUED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued", agents = { remote = { operator = "queue", queue = "q" } },
  flow = function(ctx) return ctx:run("remote", {}) end,
}
"#;

fn start(data: &Path) -> Option<Daemon> {
    Daemon::launch(data, &[CAREFUL])
}

/// Lets a daemon die three times at once, so that the next is careful.
fn die_thrice(data: &Path) {
    for _ in 0..3 {
        start(data).expect("it starts").kill();
    }
}

/// Waits until the daemon is ready; says what it said before.
async fn ready(daemon: &Daemon) -> Vec<String> {
    let mut said = Vec::new();
    eventually("a daemon that is ready", async || {
        let (status, body) = send(daemon.get("/readyz")).await;
        if status != 200 {
            said.push(body["detail"].as_str().unwrap_or_default().to_owned());
        }
        when(status == 200, format!("{body}\n{}", daemon.log()))
    })
    .await;
    said
}

async fn paused(daemon: &Daemon) -> Value {
    send(daemon.get("/v1/runs?status=paused")).await.1["items"].clone()
}

async fn lease(daemon: &Daemon, count: usize) -> Vec<String> {
    let mut handles = Vec::new();
    while handles.len() < count {
        let ask = json!({ "queue": "q", "wait": "30s", "max": count - handles.len() });
        let (status, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
        assert_eq!(status, 200, "{leased}");
        let leased = leased.as_array().unwrap();
        assert!(!leased.is_empty(), "{}", daemon.log());
        handles.extend(leased.iter().map(|it| it["handle"].as_str().unwrap().to_owned()));
    }
    handles
}

async fn accepted(daemon: &Daemon, handle: &str) {
    let body = json!({ "output": "done" });
    let (status, answer) =
        send(daemon.with(handle, Method::POST, "/v1/worker/result").json(&body)).await;
    assert_eq!(status, 200, "{answer}\n{}", daemon.log());
}

#[tokio::test]
async fn the_run_that_kills_the_host_is_found_and_none_of_its_neighbours_is_blamed() {
    let shell = Shell::new();
    let data = shell.path("data");
    let config = configuration(&shell.path(""));
    let shown = [CAREFUL, ("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let start = |data: &Path| Daemon::launch(data, &shown);
    let daemon = start(&data).unwrap();
    let culprit = Culprit::begin(&daemon, shell.path("gate")).await;
    culprit.aim_at(&data);
    daemon.kill();
    let (daemon, deaths) = culprit.is_found(|_| start(&data)).await;
    assert!(deaths >= 6, "three deaths before it is careful, three at the culprit: {deaths}");
    let culprit = culprit.is_alone(&daemon).await;
    // Nothing but `resume` and `cancel` reads it.
    let signal = daemon.post(&format!("/v1/runs/{culprit}/signals/go"), &json!({ "payload": 1 }));
    assert_eq!(refusal(signal).await, (409, "run_paused".to_owned()));
}

#[tokio::test]
async fn a_supervisor_on_a_full_disk_quarantines_nobody() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = start(&data).unwrap();
    for _ in 0..3 {
        let run = daemon.run_source(&with_child("exec sleep 600"), json!({})).await;
        daemon.waits(&run, "task").await;
    }
    daemon.kill();
    die_thrice(&data);
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let env: Vec<_> = shim.env().into_iter().chain([CAREFUL]).collect();
    for k in [1, 4, 7, 10, 16, 25] {
        shim.fail(&format!("full {k}"));
        if let Some(daemon) = Daemon::launch(&data, &env) {
            // It waits for room; its supervisor does not wait for it.
            assert_eq!(daemon.stop(), Some(0));
        }
    }
    shim.heal();
    let daemon = Daemon::launch(&data, &env).unwrap();
    ready(&daemon).await;
    assert_eq!(paused(&daemon).await, json!([]), "{}", daemon.log());
}

#[tokio::test]
async fn one_kill_within_a_mark_quarantines_nobody() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = start(&data).unwrap();
    for _ in 0..2 {
        let run = daemon.run_source(&with_child("exec sleep 600"), json!({})).await;
        daemon.waits(&run, "task").await;
    }
    daemon.kill();
    die_thrice(&data);
    // The children do not rest: the mark is there for a second.
    let daemon = start(&data).unwrap();
    let (status, body) = send(daemon.get("/readyz")).await;
    assert_eq!((status, &body["code"]), (503, &json!("not_ready")), "{body}");
    daemon.kill();
    let daemon = start(&data).unwrap();
    let said = ready(&daemon).await;
    assert!(said.iter().any(|said| said.contains("taking runs up")), "{said:?}");
    assert_eq!(paused(&daemon).await, json!([]));
}

#[tokio::test]
async fn the_door_is_open_while_thousands_of_runs_are_taken_up() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = start(&data).unwrap();
    let child = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "due", flow = function(ctx) ctx:wait("go", { timeout = "1s" }) end }
"#;
    let (status, answer) =
        send(daemon.put("/v1/blueprints/due", &json!({ "source": child }))).await;
    assert_eq!(status, 200, "{answer}");
    let many = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "many", flow = function(ctx)
  local list = {}
  for i = 1, 5000 do list[i] = i end
  ctx:map(list, function() return ctx:call("due") end)
end }
"#;
    let run = daemon.run_source(many, json!({})).await;
    eventually("5,000 steps", async || {
        let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
        when(view["steps"].as_u64().unwrap_or(0) >= 5_000, view)
    })
    .await;
    daemon.kill();
    die_thrice(&data);
    let began = Instant::now();
    let daemon = start(&data).unwrap();
    let (status, _) = send(daemon.bare(Method::GET, "/healthz")).await;
    assert_eq!(status, 200);
    assert!(began.elapsed() < Duration::from_secs(5), "it answered after {:?}", began.elapsed());
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view}");
    ready(&daemon).await;
    assert_eq!(paused(&daemon).await, json!([]));
}

#[tokio::test]
async fn a_pause_longer_than_the_lease_fences_nobody_who_works() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::launch(&data, &[("MOONSWARM_LEASE", "2s")]).unwrap();
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(daemon.run_source(QUEUED, json!({})).await);
    }
    let handles = lease(&daemon, 5).await;
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    elapse(Duration::from_secs(5)).await;
    kill_process(pid, Signal::CONT).unwrap();
    // What is due is due before the first of them is heard.
    elapse(Duration::from_millis(200)).await;
    for handle in &handles {
        accepted(&daemon, handle).await;
    }
    for run in &runs {
        daemon.ended(run).await;
    }
}

#[tokio::test]
async fn a_host_that_was_away_for_longer_than_the_lease_fences_nobody_who_works() {
    let shell = Shell::new();
    let data = shell.path("data");
    let lease_of = [("MOONSWARM_LEASE", "2s")];
    let daemon = Daemon::launch(&data, &lease_of).unwrap();
    for _ in 0..5 {
        daemon.run_source(QUEUED, json!({})).await;
    }
    let handles = lease(&daemon, 5).await;
    daemon.kill();
    elapse(Duration::from_secs(3)).await;
    let daemon = Daemon::launch(&data, &lease_of).unwrap();
    elapse(Duration::from_millis(500)).await;
    for handle in &handles[1..] {
        accepted(&daemon, handle).await;
    }
    // Who does not come back is not waited for.
    let again = lease(&daemon, 1).await;
    accepted(&daemon, &again[0]).await;
}

#[tokio::test]
async fn a_step_of_the_wall_clock_fences_nobody_and_ends_no_child() {
    let shell = Shell::new();
    let data = shell.path("data");
    let shim = Shim::build(shell.path("").as_path(), "no file");
    let ahead = shell.path("ahead");
    let clock = ("MOONSWARM_FAULT_CLOCK", ahead.to_str().unwrap());
    let env: Vec<_> = shim.env().into_iter().chain([clock, ("MOONSWARM_LEASE", "20s")]).collect();
    let daemon = Daemon::launch(&data, &env).unwrap();
    let hour = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "hour", flow = function(ctx) ctx:sleep("59m") end }
"#;
    for (step, back) in [("3600", false), ("0", true)] {
        let queued = daemon.run_source(QUEUED, json!({})).await;
        let child = daemon.run_source(&with_child("exec sleep 600"), json!({})).await;
        let handles = lease(&daemon, 1).await;
        daemon.waits(&child, "task").await;
        let timer = daemon.run_source(hour, json!({})).await;
        daemon.waits(&timer, "timer").await;
        fs::write(&ahead, step).unwrap();
        // Something that is due wakes every part of the host.
        if !back {
            for _ in 0..4 {
                let next = daemon.run_source(QUEUED, json!({})).await;
                send(daemon.post(&format!("/v1/runs/{next}/cancel"), &json!({}))).await;
            }
        }
        elapse(Duration::from_secs(1)).await;
        accepted(&daemon, &handles[0]).await;
        let view = daemon.ended(&queued).await;
        assert_eq!(view["status"], "completed", "{view}");
        let (_, view) = send(daemon.get(&format!("/v1/runs/{child}"))).await;
        assert!(view["error"].is_null() && view["ended_at"].is_null(), "{view}");
        send(daemon.post(&format!("/v1/runs/{child}/cancel"), &json!({}))).await;
        send(daemon.post(&format!("/v1/runs/{timer}/cancel"), &json!({}))).await;
    }
}

#[tokio::test]
async fn a_start_right_after_a_kill_takes_the_directory_over() {
    let shell = Shell::new();
    let data = shell.path("data");
    for _ in 0..12 {
        let daemon = Daemon::start(&data);
        let births = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "births", agents = { child = { operator = "process", command = { "true" } } },
  flow = function(ctx)
    local list = {}
    for i = 1, 200 do list[i] = i end
    ctx:map(list, function() return ctx:run("child", {}) end)
  end,
}
"#;
        daemon.run_source(births, json!({})).await;
        elapse(Duration::from_millis(30)).await;
        // It panics with the daemon's words if the next one does not start.
        daemon.kill();
    }
    Daemon::start(&data);
}

#[test]
fn a_start_that_fails_names_the_cause_and_only_an_owner_is_a_conflict() {
    let shell = Shell::new();
    let data = shell.path("data");
    let serve = |env: &[(&str, &str)]| {
        let mut command = program();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
        let output = command.envs(env.iter().copied()).stdin(Stdio::null()).output().unwrap();
        crate::support::Done::from(output)
    };
    let daemon = Daemon::start(&data);
    let pid = daemon.pid().to_string();
    serve(&[]).exits(6).says(&[&pid, &daemon.url]);
    daemon.kill();
    assert!(data.join("server.json").exists(), "what a kill leaves behind");
    fs::write(data.join("signing.key"), "nonsense").unwrap();
    let failed = serve(&[]).exits(1).says(&["signing.key"]);
    assert!(!failed.stderr.contains(&pid), "nobody has it: {}", failed.stderr);
}
