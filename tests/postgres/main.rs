//! A daemon whose runs are in a PostgreSQL database: it does the main job, goes on after a kill and
//! after a restart of the database, and is the only one that has the database.

mod away;
mod copy;
mod durability;
mod refused;
mod restored;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use support::{
    DEMO, Daemon, eventually,
    postgres::{Database, PASSWORD, Server},
    program, repository, send, skip, when,
};

/// Twenty steps, each of them a commit of its own.
pub const STEPS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "steps",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    local sum = 0
    for step = 1, 20 do sum = sum + ctx:run("echo", { n = step }).n end
    return sum
  end,
}
"#;

/// Returns what a server gives, or notes that the test is left out.
pub fn there<T>(found: Result<T, String>) -> Option<T> {
    found.map_err(|why| skip("the daemon over PostgreSQL", &why)).ok()
}

/// Starts a daemon over a database.
pub fn start(data: &Path, url: &str) -> Daemon {
    match Daemon::launch(data, &[("MOONSWARM_STORE", url)]) {
        Some(daemon) => daemon,
        None => panic!("{}", std::fs::read_to_string(data.with_extension("log")).unwrap()),
    }
}

/// Leases a task of the queue `q`, and returns its handle.
pub async fn lease(daemon: &Daemon) -> String {
    let body = json!({ "queue": "q", "wait": "30s", "max": 1 });
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    leased[0]["handle"].as_str().unwrap().to_owned()
}

/// Reports a result by a handle, and returns the answer.
pub async fn report(daemon: &Daemon, handle: &str, output: Value) -> (u16, Value) {
    let result = daemon.with(handle, Method::POST, "/v1/worker/result");
    send(result.json(&json!({ "output": output }))).await
}

async fn answer(daemon: &Daemon, run: &str) {
    daemon.waits(run, "task").await;
    let (status, tasks) = send(daemon.get(&format!("/v1/tasks?run={run}"))).await;
    assert_eq!(status, 200, "{tasks}");
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let path = format!("/v1/tasks/{task}/answer");
    let (status, told) = send(daemon.post(&path, &json!({ "output": "yes" }))).await;
    assert!(status < 300, "{told}");
}

#[tokio::test]
async fn the_main_job_is_done_and_its_report_is_kept_over_a_restart_of_the_daemon() {
    let Some(database) = there(Database::fresh()) else { return };
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let daemon = start(&data, &database.url());
    let file = repository("blueprints/repo-report.lua");
    let path = repository("blueprints");
    let done = program()
        .args(["run", file.to_str().unwrap(), &format!("path={}", path.display()), "--data"])
        .arg(&data)
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}\n{}", String::from_utf8_lossy(&done.stderr), daemon.log());
    assert!(report.contains("# Report on "), "{report}");
    assert!(!data.join("moonswarm.db").exists(), "the runs are not in the data directory");
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(database.sql("SELECT state FROM moonswarm.nodes").trim(), "gone");
    let alone = program().args(["ps", "--data"]).arg(&data).output().unwrap();
    let told = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(!alone.status.success() && told.contains("PostgreSQL database"), "{told}");

    let daemon = start(&data, &database.url());
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"][0]["status"], "completed", "{runs}");
    let run = runs["items"][0]["id"].as_str().unwrap();
    let (_, files) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    assert_eq!(files["items"][0]["name"], "report.md", "{files}");
}

/// Counts the runs whose journal has another number of entries than their header says.
const GAPS: &str = "SELECT count(*) FROM moonswarm.runs r
    WHERE r.seq <> (SELECT count(*) FROM moonswarm.journal j WHERE j.run = r.num)";

/// Starts runs of [`STEPS`].
async fn begin(daemon: &Daemon, runs: usize) -> Vec<String> {
    let mut begun = Vec::new();
    for _ in 0..runs {
        begun.push(daemon.run_source(STEPS, json!({})).await);
    }
    begun
}

/// Waits until runs of [`STEPS`] have ended, while the database may be away.
async fn end_after_outage(daemon: &Daemon, begun: &[String]) {
    for run in begun {
        let view = eventually("the runs go on", async || {
            let (status, view) = send(daemon.get(&format!("/v1/runs/{run}?wait=60s"))).await;
            when(status == 200 && !view["ended_at"].is_null(), view.to_string()).map(|()| view)
        })
        .await;
        assert_eq!(view["output"], 210, "{view}\n{}", daemon.log());
    }
}

/// Sends a run of [`DEMO`] the signal that it waits for.
async fn go(daemon: &Daemon, run: &str) {
    let (status, told) =
        send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("on"))).await;
    assert!(status < 300, "{told}");
}

#[tokio::test]
async fn a_killed_daemon_goes_on_with_its_runs_and_loses_nothing() {
    let Some(database) = there(Database::fresh()) else { return };
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let daemon = start(&data, &database.url());
    let waiting = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&waiting, "signal").await;
    let begun = begin(&daemon, 8).await;
    daemon.kill();

    let daemon = start(&data, &database.url());
    for run in &begun {
        let view = daemon.ended(run).await;
        assert_eq!(view["output"], 210, "{view}");
    }
    go(&daemon, &waiting).await;
    answer(&daemon, &waiting).await;
    let view = daemon.ended(&waiting).await;
    assert_eq!(view["output"]["seen"], "on", "{view}");
    // The one that was killed was ended by its successor, who has the lock of its directory.
    let states = database.sql("SELECT state FROM moonswarm.nodes ORDER BY node");
    assert_eq!(states.split_whitespace().collect::<Vec<_>>(), ["gone", "up"]);
    assert_eq!(database.sql(GAPS).trim(), "0");
}

#[tokio::test]
async fn a_restart_of_the_database_is_waited_for() {
    let Some(server) = there(Server::own()) else { return };
    let name = server.create_database();
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let daemon = start(&data, &server.url(&name));
    let before = daemon.run_source(STEPS, json!({})).await;
    daemon.ended(&before).await;
    let open = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&open, "signal").await;
    let begun = begin(&daemon, 4).await;
    server.stop();
    let (status, _) = send(daemon.get("/healthz")).await;
    assert_eq!(status, 200, "the process lives");
    let (status, view) = send(daemon.get(&format!("/v1/runs/{before}"))).await;
    assert!(matches!(status, 200 | 503), "{status} {view}");
    server.start();

    end_after_outage(&daemon, &begun).await;
    go(&daemon, &open).await;
    answer(&daemon, &open).await;
    assert_eq!(daemon.ended(&open).await["output"]["seen"], "on");
}

#[tokio::test]
async fn a_second_daemon_over_the_same_database_is_refused_and_the_first_goes_on() {
    let Some(database) = there(Database::fresh()) else { return };
    let home = tempfile::tempdir().unwrap();
    let first = start(&home.path().join("first"), &database.url());
    let second = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(home.path().join("second"))
        .env("MOONSWARM_STORE", database.url())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{told}");
    assert!(told.contains(&format!("(pid {})", first.pid())), "{told}");
    assert!(told.contains("stop the other host"), "{told}");
    let run = first.run_source(STEPS, json!({})).await;
    assert_eq!(first.ended(&run).await["output"], 210);
}

#[tokio::test]
async fn a_daemon_that_was_taken_over_writes_nothing_more_and_ends() {
    let Some(database) = there(Database::fresh()) else { return };
    let home = tempfile::tempdir().unwrap();
    let mut daemon = start(&home.path().join("data"), &database.url());
    let run = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&run, "signal").await;
    // What a successor does first.
    database.sql("DELETE FROM moonswarm.lanes; UPDATE moonswarm.nodes SET state = 'gone'");
    let rows = "SELECT count(*) FROM moonswarm.journal";
    let before = database.sql(rows);
    let path = format!("/v1/runs/{run}/signals/go");
    let answered = daemon.post(&path, &json!("on")).send().await;
    assert!(answered.is_err() || answered.is_ok_and(|it| !it.status().is_success()));
    let ended = eventually("it ends", async || daemon.ends().ok_or("it runs")).await;
    assert_ne!(ended, 0);
    assert_eq!(database.sql(rows), before);
    assert!(daemon.log().contains("another host has taken it over"), "{}", daemon.log());
}

#[test]
fn the_password_is_shown_nowhere_and_refused_where_others_can_read_it() {
    let Some(database) = there(Database::fresh()) else { return };
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let secret = PASSWORD.replace('%', "%25");
    let url = database.tcp_url();
    assert!(url.contains(&secret));
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let done = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .args(args)
            .envs(env.iter().copied())
            .output()
            .unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (ok, told) = run(&["--store", &url], &[]);
    assert!(!ok && told.contains("others can read it"), "{told}");
    let wrong = url.replace(&secret, "wr0ng-one");
    let (ok, log) = run(&["--log", "trace"], &[("MOONSWARM_STORE", &wrong)]);
    assert!(!ok && log.contains("check the user, its password"), "{log}");
    assert!(!log.contains("wr0ng-one"), "{log}");

    let file = home.path().join("address");
    std::fs::write(&file, format!("{url}\n")).unwrap();
    let config = home.path().join("moonswarm.toml");
    std::fs::write(&config, format!("store = {{ file = {:?} }}\n", file)).unwrap();
    let daemon = Daemon::start_with(
        &data,
        &["--config".as_ref(), config.as_ref(), "--log".as_ref(), "trace".as_ref()],
    );
    let seen: Value = serde_json::to_value(&daemon.said).unwrap();
    let mut all = daemon.log() + &seen.to_string();
    let arguments = std::fs::read(format!("/proc/{}/cmdline", daemon.pid())).unwrap();
    all.push_str(&String::from_utf8_lossy(&arguments));
    assert!(!all.contains(&secret) && !all.contains(PASSWORD), "{all}");
}
