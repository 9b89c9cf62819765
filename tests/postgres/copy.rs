//! `moonswarm store copy`: everything goes into a database and back, and goes on there.

use std::path::Path;

use moonswarm::protocol::RunId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    lease, report,
    support::{DEMO, Daemon, Done, Shell, eventually, postgres::Database, send, when},
    there,
};

/// A run that leaves something in every table: values, links, files, tags, a sleep, a task for a
/// worker and one for a session.
const ALL: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "all",
  agents = { q = { operator = "queue", queue = "q" }, echo = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:artifact("note.txt", "kept")
    ctx.state:set("own", { words = "blue moon" })
    local notes = ctx:scope { custom = "notes" }
    notes:set("shared", { words = "green cheese \0 ünïcode" })
    ctx:status("at work")
    ctx:run("echo", { n = 1 })
    return ctx:run("q", { n = 2 })
  end,
}
"#;

const SLEEPS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "sleeps", agents = {},
  flow = function(ctx, input) ctx:sleep("100d") return 1 end,
}
"#;

const FAILS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "fails", agents = {},
  flow = function(ctx, input) error("the cheese is off") end,
}
"#;

fn copy(shell: &Shell, url: &str, flags: &[&str]) -> Done {
    let args = [&["store", "copy", "--data", "data"], flags].concat();
    shell.command(&args).env("MOONSWARM_STORE", url).output().unwrap().into()
}

/// Nothing is damaged, as the daemon of the directory sees it.
fn is_sound(shell: &Shell) {
    let told = shell.run(&["doctor", "--deep", "--data", "data"]).ok();
    assert!(told.stdout.contains("damaged: 0"), "{told:?}");
}

async fn texts(daemon: &Daemon) -> Vec<String> {
    let (status, found) = send(daemon.get("/v1/runs?q=cheese")).await;
    assert_eq!(status, 200, "{found}");
    let ids = found["items"].as_array().unwrap().iter();
    ids.map(|it| it["id"].as_str().unwrap().to_owned()).collect()
}

/// Starts a daemon over `store`, which lets a task to a worker for longer than a test takes.
fn start(data: &Path, store: &str) -> Daemon {
    let daemon = Daemon::launch(data, &[("MOONSWARM_STORE", store), ("MOONSWARM_LEASE", "2h")]);
    let log = || std::fs::read_to_string(data.with_extension("log")).unwrap();
    daemon.unwrap_or_else(|| panic!("{}", log()))
}

/// Returns an empty database, a place for a data directory, and the address of the database.
fn fresh() -> Option<(Database, Shell, String)> {
    let database = there(Database::fresh())?;
    let url = database.url();
    Some((database, Shell::new(), url))
}

#[tokio::test]
async fn a_store_goes_into_postgresql_and_back_and_everything_given_out_stays_good() {
    let Some((database, shell, url)) = fresh() else { return };
    let data = shell.path("data");
    let daemon = start(&data, "sqlite");
    let key = |request: reqwest::RequestBuilder| request.header("Idempotency-Key", "once");
    let published = daemon.put("/v1/blueprints/all", &json!({ "source": ALL }));
    assert!(send(published).await.0 < 300);
    let begin = json!({ "blueprint": "all", "input": {}, "tags": { "team": "moon" } });
    let (status, begun) = send(key(daemon.post("/v1/runs", &begin))).await;
    assert!(status < 300, "{begun}");
    let first = begun["id"].as_str().unwrap().to_owned();
    let held = lease(&daemon).await;
    let waiting = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&waiting, "signal").await;
    let asleep = daemon.run_source(SLEEPS, json!({})).await;
    daemon.waits(&asleep, "timer").await;
    let failed = daemon.run_source(FAILS, json!({})).await;
    daemon.ended(&failed).await;
    let opened = daemon.post("/v1/operators/main-ai/sessions", &json!({}));
    let (status, session) = send(opened).await;
    assert_eq!(status, 201, "{session}");
    let mint = json!({ "role": "observer", "ttl": "9h" });
    let (_, minted) = send(daemon.post("/v1/tokens", &mint)).await;
    let token = minted["token"].as_str().unwrap_or_else(|| panic!("{minted}")).to_owned();

    let busy = copy(&shell, &url, &["--to", "postgres"]).exits(6);
    assert!(busy.stderr.contains("another process has it"), "{busy:?}");
    assert_eq!(daemon.stop(), Some(0));
    let dry = copy(&shell, &url, &["--to", "postgres", "--dry-run", "--json"]).ok().json();
    assert_eq!(dry["set_aside"], Value::Null, "{dry}");
    assert!(data.join("moonswarm.db").exists());
    let copied = copy(&shell, &url, &["--to", "postgres", "--json"]).ok();
    assert!(copied.stderr.contains("copying journal"), "{copied:?}");
    let rows = |table: &str| {
        let copied = copied.json();
        let tables = copied["tables"].as_array().unwrap().iter();
        tables.filter(|it| it["name"] == table).map(|it| it["rows"].as_u64().unwrap()).sum::<u64>()
    };
    for table in ["runs", "journal", "tasks", "state", "blobs", "artifacts", "tokens", "sessions"] {
        assert!(rows(table) > 0, "{table}: {copied:?}");
    }
    assert!(!data.join("moonswarm.db").exists() && data.join("copied-to-postgres.db").exists());
    let again = copy(&shell, &url, &["--to", "postgres"]);
    assert!(again.code != 0 && again.stderr.contains("no runs to copy"), "{again:?}");

    let daemon = start(&data, &url);
    is_sound(&shell);
    let (status, repeated) = send(key(daemon.post("/v1/runs", &begin))).await;
    assert!(status < 300 && repeated["id"] == first.as_str(), "{repeated}");
    assert_eq!(texts(&daemon).await, std::slice::from_ref(&failed));
    let (_, tagged) = send(daemon.get("/v1/runs?tag=team=moon")).await;
    assert_eq!(tagged["items"][0]["id"], first.as_str(), "{tagged}");
    assert_eq!(report(&daemon, &held, json!("by the old handle")).await.0, 200);
    let view = daemon.ended(&first).await;
    assert_eq!(view["output"], "by the old handle", "{view}");
    let second = daemon.run_source(ALL, json!({})).await;
    let held = lease(&daemon).await;
    let id = session["session"].as_str().unwrap();
    let (status, told) = send(daemon.get(&format!("/v1/sessions/{id}"))).await;
    assert_eq!(status, 200, "{told}");
    let refused = copy(&shell, &url, &["--to", "sqlite"]).exits(6);
    assert!(refused.stderr.contains("another process has it"), "{refused:?}");
    assert_eq!(daemon.stop(), Some(0));

    copy(&shell, &url, &["--to", "sqlite"]).ok().says(&["compared with the original"]);
    let stale = Daemon::launch(&data.with_file_name("other"), &[("MOONSWARM_STORE", &url)]);
    assert!(stale.is_none(), "the database was set aside");
    let log = std::fs::read_to_string(data.with_file_name("other.log")).unwrap();
    assert!(log.contains("copied into a data directory"), "{log}");
    let daemon = start(&data, "sqlite");
    is_sound(&shell);
    assert_eq!(report(&daemon, &held, json!("again")).await.0, 200);
    assert_eq!(daemon.ended(&second).await["output"], "again");
    assert_eq!(texts(&daemon).await, [failed]);
    let path = format!("/v1/runs/{waiting}/signals/go");
    assert!(send(daemon.post(&path, &json!("on"))).await.0 < 300);
    daemon.waits(&waiting, "task").await;
    let (status, _) = send(daemon.with(&token, Method::GET, "/v1/runs")).await;
    assert_eq!(status, 200, "a token that was minted before both copies");
    let (_, view) = send(daemon.get(&format!("/v1/runs/{asleep}"))).await;
    assert_eq!(view["status"], "waiting", "{view}");
    let left = daemon.run_source(DEMO, json!({})).await;
    // Ids do not sort as texts: digits stand for larger values than letters.
    let number = |run: &str| run.parse::<RunId>().unwrap().num();
    assert!(number(&left) > number(&second), "numbers go on: {left} after {second}");
    assert_eq!(daemon.stop(), Some(0));

    database.sql("DROP SCHEMA moonswarm CASCADE");
    copy(&shell, &url, &["--to", "postgres"]).ok();
    assert!(data.join("copied-to-postgres-2.db").exists());
    let daemon = start(&data, &url);
    is_sound(&shell);
    daemon.waits(&left, "signal").await;
}

#[tokio::test]
async fn a_copy_that_ends_early_leaves_the_target_as_it_was() {
    let Some((database, shell, url)) = fresh() else { return };
    let data = shell.path("data");
    let daemon = start(&data, "sqlite");
    let run = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&run, "signal").await;
    assert_eq!(daemon.stop(), Some(0));

    // It is killed when everything is in the database, and nothing is confirmed.
    let mut child = shell.command(&["store", "copy", "--to", "postgres", "--data", "data"]);
    let child = child.env("MOONSWARM_STORE", &url).env("MOONSWARM_KILL_AT", "store.copied#1");
    let ended = child.output().unwrap();
    assert!(!ended.status.success(), "{ended:?}");
    eventually("the server notices", async || {
        let left = database.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'moonswarm'");
        when(left.trim() == "0", left)
    })
    .await;
    assert!(data.join("moonswarm.db").exists(), "the source is as it was");
    copy(&shell, &url, &["--to", "postgres"]).ok();

    let damaged = "UPDATE moonswarm.journal SET entry = '\\x00' WHERE seq = 1";
    database.sql(damaged);
    let refused = copy(&shell, &url, &["--to", "sqlite"]);
    assert!(refused.code != 0 && refused.stderr.contains("only an intact store"), "{refused:?}");
    let names = std::fs::read_dir(&data).unwrap().map(|it| it.unwrap().file_name());
    let names: Vec<_> = names.map(|it| it.into_string().unwrap()).collect();
    assert!(!names.iter().any(|it| it.contains("copying") || it == "moonswarm.db"), "{names:?}");
    let served = Daemon::launch(&data, &[("MOONSWARM_STORE", "sqlite")]);
    assert!(served.is_none(), "the runs are still in the database");
}
