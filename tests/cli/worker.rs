//! The pull worker as a command: several tasks at a time, and how it ends.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::Path,
};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Daemon, Shell, Watched, send};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "built",
  agents = { build = { operator = "queue", queue = "builds", labels = { gpu = "true" } } },
  flow = function(ctx, input) return ctx:run("build", input) end }"#;

/// A chain of steps.
const CHAIN: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "chain",
  agents = { build = { operator = "queue", queue = "builds", labels = { gpu = "true" } } },
  flow = function(ctx)
    for n = 1, 5 do ctx:run("build", { n = n }) end
    return "built"
  end }"#;

/// Chains of steps side by side.
const CHAINS: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "chains",
  agents = { build = { operator = "queue", queue = "builds", labels = { gpu = "true" } } },
  flow = function(ctx)
    ctx:map({ 1, 2, 3, 4 }, function(chain)
      for n = 1, 5 do ctx:run("build", { chain = chain, n = n }) end
    end)
    return "built"
  end }"#;

/// Says that it began, and waits until the task of its number is let go.
const COMMAND: &str = "n=$(tr -dc 0-9); echo up > up; read go < \"go$n\"; printf '{\"went\":true}'";

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn worker(shell: &Shell, daemon: &Daemon, max: &str, command: &str) -> Watched {
    worker_with(&daemon.token, shell, daemon, max, command)
}

fn worker_with(token: &str, shell: &Shell, daemon: &Daemon, max: &str, command: &str) -> Watched {
    let flags = ["worker", "--queue", "builds", "--label", "gpu=true", "--label", "zone=eu"];
    let more = ["--max-in-flight", max, "--server", &daemon.url, "--token", token];
    let command = ["--", "sh", "-c", command];
    shell.start(&[&flags[..], &more[..], &command[..]].concat())
}

/// A worker whose tasks wait for the test.
fn held_worker(shell: &Shell, daemon: &Daemon, max: &str) -> Watched {
    held_worker_with(&daemon.token, shell, daemon, max)
}

fn held_worker_with(token: &str, shell: &Shell, daemon: &Daemon, max: &str) -> Watched {
    for name in ["up", "go1", "go2"] {
        pipe(&shell.path(name));
    }
    worker_with(token, shell, daemon, max, COMMAND)
}

fn let_go(shell: &Shell, name: &str) {
    File::options().write(true).open(shell.path(name)).unwrap().write_all(b"go\n").unwrap();
}

/// Waits until as many commands have begun.
fn begun(shell: &Shell, count: usize) {
    let mut up = File::open(shell.path("up")).unwrap();
    let mut heard: Vec<u8> = Vec::new();
    while heard.len() < 3 * count {
        let mut piece = [0; 16];
        let read = up.read(&mut piece).unwrap();
        heard.extend(&piece[..read]);
        if read == 0 {
            up = File::open(shell.path("up")).unwrap();
        }
    }
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_finishes_what_it_has_and_takes_no_more() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut worker = held_worker(&shell, &daemon, "2");
    worker.until("taking tasks of builds --label gpu=true --label zone=eu");
    let first = daemon.run_source(FLOW, json!({ "n": 1 })).await;
    let second = daemon.run_source(FLOW, json!({ "n": 2 })).await;
    begun(&shell, 2);

    worker.signal(Signal::TERM);
    worker.until("draining: asking for no more tasks, 2 to finish");
    let third = daemon.run_source(FLOW, json!({ "n": 3 })).await;
    for go in ["go1", "go2"] {
        let_go(&shell, go);
        worker.until(" done");
    }
    worker.end().exits(0);

    for run in [first, second] {
        assert_eq!(daemon.ended(&run).await["output"], json!({ "went": true }));
    }
    let (_, waiting) = send(daemon.get(&format!("/v1/runs/{third}"))).await;
    assert_eq!(waiting["status"], "waiting");
    assert_eq!(waiting["waiting_on"][0]["subject"]["queue"], "builds");
    let command = "moonswarm worker --queue builds --label gpu=true -- <command>";
    let shown = shell.run(&["show", &third, "--data", "data"]).ok();
    assert!(shown.stdout.contains(command), "{shown:?}");
}

#[tokio::test]
async fn a_worker_that_is_told_twice_stops_at_once() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut worker = held_worker(&shell, &daemon, "2");
    daemon.run_source(FLOW, json!({ "n": 1 })).await;
    begun(&shell, 1);
    worker.signal(Signal::TERM);
    worker.until("draining");
    worker.signal(Signal::INT);
    worker.end().exits(130).says(&["1 task(s) given up"]);
}

#[tokio::test]
async fn a_worker_whose_token_has_ended_finishes_what_it_has() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let body = json!({ "role": "queue", "scopes": ["queue:builds"], "ttl": "1h" });
    let (_, minted) = send(daemon.post("/v1/tokens", &body)).await;
    let text = |name: &str| minted[name].as_str().unwrap();
    let mut worker = held_worker_with(text("token"), &shell, &daemon, "2");
    let first = daemon.run_source(FLOW, json!({ "n": 1 })).await;
    let second = daemon.run_source(FLOW, json!({ "n": 2 })).await;
    begun(&shell, 2);

    let revoked = daemon.delete(&format!("/v1/tokens/{}", text("jti")));
    assert_eq!(send(revoked).await.0, 204);
    let_go(&shell, "go1");
    worker.until("draining, 1 to finish: ");
    let_go(&shell, "go2");
    worker.end().exits(5).says(&["token_revoked"]);

    for run in [first, second] {
        assert_eq!(daemon.ended(&run).await["output"], json!({ "went": true }));
    }
}

#[tokio::test]
async fn a_task_goes_to_a_worker_that_has_its_labels() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(FLOW, json!({})).await;
    daemon.waits(&run, "task").await;
    // It is offered again from the database, labels and all.
    daemon.kill();
    let daemon = Daemon::start(&shell.path("data"));
    let lease = |labels: serde_json::Value| {
        let body = json!({ "queue": "builds", "wait": "50ms", "labels": labels });
        send(daemon.post("/v1/worker/lease", &body))
    };
    assert_eq!(lease(json!({})).await.0, 204);
    assert_eq!(lease(json!({ "gpu": "false" })).await.0, 204);
    assert_eq!(lease(json!({ "gpu": "a b" })).await.0, 422);
    assert_eq!(lease(json!({ "gpu": "true", "zone": "eu" })).await.0, 200);
}

#[tokio::test]
async fn the_steps_of_a_chain_come_with_the_answers_to_the_results_before_them() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let _worker = worker(&shell, &daemon, "1", "echo true");
    let run = daemon.run_source(CHAIN, json!({})).await;
    assert_eq!(daemon.ended(&run).await["output"], "built");
    let (_, metrics) = send(daemon.get("/metrics")).await;
    let leases = "moonswarm_http_requests_total\
        {method=\"POST\",route=\"/v1/worker/lease\",status=\"200\"} ";
    let leases = metrics.as_str().unwrap().lines().find_map(|line| line.strip_prefix(leases));
    // The first step. A next one comes later if the turn of its run was over before.
    let leases: u32 = leases.unwrap().parse().unwrap();
    assert!(leases < 4, "{leases} of 5");
}

#[tokio::test]
async fn a_worker_never_has_more_tasks_than_it_may() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let command = "echo begun >> log; cat > /dev/null; echo ended >> log; echo true";
    let worker = worker(&shell, &daemon, "2", command);
    let run = daemon.run_source(CHAINS, json!({})).await;
    assert_eq!(daemon.ended(&run).await["output"], "built");
    worker.signal(Signal::TERM);
    worker.end().exits(0);
    let log = std::fs::read_to_string(shell.path("log")).unwrap();
    let (mut in_work, mut begun) = (0, 0);
    for line in log.lines() {
        match line {
            "begun" => (in_work, begun) = (in_work + 1, begun + 1),
            _ => in_work -= 1,
        }
        assert!(in_work <= 2, "{log}");
    }
    assert_eq!(begun, 20, "{log}");
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_leaves_the_next_step_to_others() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut worker = held_worker(&shell, &daemon, "1");
    daemon.run_source(CHAIN, json!({})).await;
    begun(&shell, 1);
    worker.signal(Signal::TERM);
    worker.until("draining: asking for no more tasks, 1 to finish");
    let_go(&shell, "go1");
    worker.until(" done");
    let body = json!({ "queue": "builds", "wait": "10s", "labels": { "gpu": "true" } });
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    worker.end().exits(0);
}
