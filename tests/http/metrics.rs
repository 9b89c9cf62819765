//! The metrics: who may read them, both formats, and that boards, alerts and documents know no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::Stdio,
};

use moonswarm::metrics::{FAMILIES, Kind};
use reqwest::Method;
use serde_json::json;

use crate::support::{Daemon, eventually, refusal, repository, send, skip, when};

const SUMS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "sums",
  agents = { e = { operator = "echo" }, p = { operator = "human" }, l = { operator = "lua", fn = function(it) return it end },
    w = { operator = "process", command = { "true" } } },
  flow = function(ctx, input)
    ctx:run("e", input.n + 1)
    ctx:run("l", input.n)
    ctx:run("w", {})
    ctx:sleep("1ms")
    if input.ask then ctx:run("p", "sure?") end
    if input.fail then error("no") end
    return 1
  end,
}
"#;

async fn token_of(daemon: &Daemon, role: &str) -> String {
    let (_, minted) = send(daemon.post("/v1/tokens", &json!({"role": role, "ttl": "1h"}))).await;
    minted["token"].as_str().unwrap().to_owned()
}

async fn scrape(daemon: &Daemon) -> String {
    let answer = daemon.get("/metrics").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

/// The value of a series, by the beginning of its line.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn what_happens_is_counted_and_no_label_is_an_id() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let run = daemon.run_source(SUMS, json!({"n": 1})).await;
    daemon.ended(&run).await;
    let failed = daemon.run_source(SUMS, json!({"n": 1, "fail": true})).await;
    daemon.ended(&failed).await;
    let asks = daemon.run_source(SUMS, json!({"n": 1, "ask": true})).await;
    daemon.waits(&asks, "task").await;
    assert_eq!(refusal(daemon.get("/v1/runs/run_x")).await.0, 400);

    let counted = async || {
        let text = scrape(&daemon).await;
        let ended = r#"moonswarm_runs_ended_total{blueprint="sums",status="failed"}"#;
        when(value(&text, ended) == Some(1.0), text.clone()).map(|()| text)
    };
    let text = eventually("both ends are counted", counted).await;
    for (series, expected) in [
        (r#"moonswarm_runs_started_total{blueprint="sums",trigger="request"}"#, 3.0),
        (r#"moonswarm_runs_ended_total{blueprint="sums",status="completed"}"#, 1.0),
        (r#"moonswarm_run_duration_seconds_count{blueprint="sums"}"#, 2.0),
        (r#"moonswarm_runs_open"#, 1.0),
        (r#"moonswarm_steps_total{blueprint="sums",kind="task",status="completed"}"#, 9.0),
        (r#"moonswarm_steps_total{blueprint="sums",kind="timer",status="completed"}"#, 3.0),
        (r#"moonswarm_open_tasks{operator="human",kind="human"}"#, 1.0),
        (r#"moonswarm_refusals_total{code="bad_id"}"#, 1.0),
        (r#"moonswarm_http_requests_total{method="GET",route="/v1/runs/{run}",status="400"}"#, 1.0),
        (r#"moonswarm_trigger_starts_total{kind="schedule",outcome="failed"}"#, 0.0),
        (r#"moonswarm_ready"#, 1.0),
        (r#"moonswarm_started_after_crash"#, 0.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    let attempts = r#"moonswarm_attempts_total{operator="process",agent="w",outcome="completed"}"#;
    assert_eq!(value(&text, attempts), Some(3.0), "{text}");
    for series in [
        "moonswarm_commit_seconds_count",
        "moonswarm_commit_sync_seconds_sum",
        "moonswarm_database_bytes",
        "moonswarm_disk_bytes",
        "moonswarm_disk_free_bytes",
        "moonswarm_http_connections",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ] {
        assert!(value(&text, series).is_some_and(|it| it > 0.0), "{series}\n{text}");
    }
    for id in ["run_", "task_", "ses_", "art_", "sbx"] {
        let labels = text.lines().filter(|line| !line.starts_with('#'));
        let named: Vec<_> = labels.filter(|it| it.contains(&format!("\"{id}"))).collect();
        assert!(named.is_empty(), "{named:?}");
    }
    for it in FAMILIES {
        assert!(text.contains(&format!("# TYPE {} ", it.name)), "{}", it.name);
    }
}

/// Starts a run, answers its first task as a person and reports the second one as a pull worker.
pub(crate) async fn run_of_a_person_and_a_worker(daemon: &Daemon) -> String {
    let source = r#"return require("swarm").blueprint { name = "asks",
        agents = { p = { operator = "human" }, q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return { ctx:run("p", "sure?"), ctx:run("q", 1) } end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    daemon.waits(&run, "task").await;
    let (_, list) = send(daemon.get("/v1/tasks")).await;
    let path = format!("/v1/tasks/{}/answer", list["items"][0]["id"].as_str().unwrap());
    let (status, body) = send(daemon.post(&path, &json!({"output": "yes"}))).await;
    assert!(status < 300, "{status} {body}");
    let lease = json!({"queue": "q", "wait": "30s"});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
    assert_eq!(status, 200, "{leased}");
    let handle = leased[0]["handle"].as_str().unwrap();
    let done = json!({"ok": true, "output": 1});
    let report = daemon.with(handle, Method::POST, "/v1/worker/result").json(&done);
    assert_eq!(send(report).await.0, 200);
    run
}

#[tokio::test]
async fn a_person_has_no_usage_to_report_and_a_worker_has() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let run = run_of_a_person_and_a_worker(&daemon).await;
    daemon.ended(&run).await;
    let counted = async || {
        let text = scrape(&daemon).await;
        let ended = r#"moonswarm_runs_ended_total{blueprint="asks",status="completed"}"#;
        when(value(&text, ended) == Some(1.0), text.clone()).map(|()| text)
    };
    let text = eventually("the end is counted", counted).await;
    for (operator, expected) in [("human", 0.0), ("queue", 1.0)] {
        let series = format!(r#"moonswarm_usage_unreported_total{{operator="{operator}"}}"#);
        assert_eq!(value(&text, &series), Some(expected), "{series}\n{text}");
    }
}

#[tokio::test]
async fn a_budget_of_all_runs_has_its_limit_beside_what_was_used() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("swarm.toml");
    let layers = "[[middleware]]\nname = \"all\"\nkind = \"budget\"\nusd = \"12.5\"\ntokens = 1000\nper = \"day\"\n\
                  [[middleware]]\nname = \"each\"\nkind = \"budget\"\ntokens = 7\n";
    std::fs::write(&config, layers).unwrap();
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&dir.path().join("data"), &flags);
    let text = scrape(&daemon).await;
    for (series, expected) in [
        (r#"moonswarm_budget_used_usd{layer="all"}"#, 0.0),
        (r#"moonswarm_budget_used_tokens{layer="all"}"#, 0.0),
        (r#"moonswarm_budget_limit_usd{layer="all"}"#, 12.5),
        (r#"moonswarm_budget_limit_tokens{layer="all"}"#, 1000.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    assert!(!text.contains("layer=\"each\""), "one of each run has no sum: {text}");
}

#[tokio::test]
async fn metrics_take_the_right_to_read_the_host_and_come_in_two_formats() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let observer = token_of(&daemon, "observer").await;
    let ask = |token: &str| daemon.with(token, Method::GET, "/metrics");
    let plain = ask(&observer).send().await.unwrap();
    assert_eq!(plain.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";
    let open = ask(&observer).header("accept", accept).send().await.unwrap();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.headers()["content-type"], kind);
    let text = open.text().await.unwrap();
    assert!(text.ends_with("# EOF\n") && text.contains("# TYPE moonswarm_refusals counter\n"));
    let approver = token_of(&daemon, "approver").await;
    assert_eq!(refusal(ask(&approver)).await, (403, "forbidden_verb".to_owned()));
    assert_eq!(refusal(daemon.bare(Method::GET, "/metrics")).await.0, 401);
}

#[tokio::test]
async fn a_listener_of_their_own_serves_the_metrics_without_a_token_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("swarm.toml");
    std::fs::write(&config, "metrics = { listen = \"127.0.0.1:0\" }").unwrap();
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&dir.path().join("data"), &flags);
    let url = daemon.said["metrics"].as_str().unwrap().to_owned();
    let client = reqwest::Client::new();
    let text = client.get(&url).send().await.unwrap().text().await.unwrap();
    assert!(text.contains("moonswarm_ready 1\n"), "{text}");
    let other = url.replace("/metrics", "/v1/runs");
    assert_eq!(client.get(other).send().await.unwrap().status(), 404);
    let foreign = client.get(&url).header("host", "evil.example").send().await.unwrap();
    assert_eq!(foreign.status(), 403, "a page of another name must not read them");
}

#[tokio::test]
async fn promtool_has_nothing_to_say_against_them() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let run = daemon.run_source(SUMS, json!({"n": 1})).await;
    daemon.ended(&run).await;
    let text = scrape(&daemon).await;
    let started = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else {
        return skip("promtool check metrics", "promtool is not installed");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = promtool.wait_with_output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(done.status.success() && said.trim().is_empty(), "{said}");
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text
        .split(|c| !word(c))
        .filter(|it| it.starts_with("moonswarm_") || it.starts_with("process_"));
    words.map(str::to_owned).collect()
}

#[test]
fn the_board_and_the_alerts_name_only_metrics_that_exist() {
    let mut series = BTreeSet::new();
    for it in FAMILIES {
        match it.kind {
            Kind::Counter | Kind::Gauge => drop(series.insert(it.name.to_owned())),
            Kind::Histogram => {
                series.extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", it.name)));
            }
        }
    }
    for file in ["deploy/grafana/moonswarm.json", "deploy/prometheus/moonswarm.rules.yml"] {
        let text = std::fs::read_to_string(repository(file)).unwrap();
        let named = names(&text);
        assert!(named.len() > 5, "{file} names {named:?}");
        let unknown: Vec<_> = named.difference(&series).collect();
        assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
    }
    let board = std::fs::read_to_string(repository("deploy/grafana/moonswarm.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&board).unwrap();
    assert!(board["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn a_host_that_is_gone_has_an_alert() {
    let rules = repository("deploy/prometheus/moonswarm.rules.yml");
    let rules = std::fs::read_to_string(rules).unwrap();
    // One that does not answer has one alert, and so has the end of every series.
    let down = r#"up{job="moonswarm"} == 0"#;
    let expression = format!("expr: {down} or (absent(moonswarm_ready) unless on() {down})\n");
    assert!(rules.contains(&expression), "{rules}");
    // The alert is about the job that the documentation names.
    let page = std::fs::read_to_string(repository("docs/telemetry.md")).unwrap();
    assert!(page.contains("- job_name: moonswarm\n"));
}

/// The expressions of the alerts, by name, each on one line.
fn alerts() -> BTreeMap<String, String> {
    let rules = std::fs::read_to_string(repository("deploy/prometheus/moonswarm.rules.yml"));
    let rules = rules.unwrap();
    let alert = |text: &str| {
        let (name, rest) = text.split_once('\n')?;
        let (_, rest) = rest.split_once("expr: ")?;
        let lines = rest.lines().map(str::trim);
        let lines = lines.take_while(|it| !it.starts_with("for:") && !it.starts_with("labels:"));
        Some((name.to_owned(), lines.collect::<Vec<_>>().join(" ")))
    };
    rules.split("- alert: ").skip(1).filter_map(alert).collect()
}

#[test]
fn a_queue_with_a_task_in_work_is_served() {
    let alerts = alerts();
    let expected = r#"| moonswarm_queue_tasks{state="waiting"} > 0 and ignoring (state) moonswarm_queue_tasks{state="in_work"} == 0 and ignoring (state) moonswarm_queue_workers == 0"#;
    assert_eq!(alerts["MoonswarmQueueIsNotServed"], expected);
}

#[test]
fn what_is_lost_or_not_exported_has_an_alert() {
    let alerts: Vec<String> = alerts().into_values().collect();
    for metric in [
        "moonswarm_lost_acknowledged_total",
        "moonswarm_otlp_failures_total",
        "moonswarm_otlp_items_total",
        "moonswarm_otlp_left_out_entries_total",
    ] {
        assert!(alerts.iter().any(|it| names(it).contains(metric)), "{metric}");
    }
}

#[test]
fn the_table_of_the_documentation_is_that_of_the_program() {
    let page = std::fs::read_to_string(repository("docs/telemetry.md")).unwrap();
    let rows: Vec<&str> =
        page.lines().filter(|it| names(it).len() == 1 && it.starts_with("| `")).collect();
    let kind = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let expected: Vec<String> = FAMILIES
        .iter()
        .map(|it| {
            let labels: Vec<_> = it.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{}` | {} | {} | {} |", it.name, kind(it.kind), labels.join(", "), it.help)
        })
        .collect();
    assert_eq!(rows, expected);
}
