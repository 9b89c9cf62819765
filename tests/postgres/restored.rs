//! A database that is restored to an earlier time while no host runs: it is noticed, and its runs go on once
//! somebody says so, with new handles.

use std::path::PathBuf;

use reqwest::Method;
use serde_json::json;

use crate::{
    STEPS, lease, report, start,
    support::{Daemon, Shell, eventually, postgres::Database, send, when},
    there,
};

/// A flow with a task for a pull worker.
const QUEUED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued",
  agents = { q = { operator = "queue", queue = "q" } },
  flow = function(ctx, input) return ctx:run("q", {}) end,
}
"#;

/// A database that was set back to a copy of it.
struct SetBack {
    shell: Shell,
    data: PathBuf,
    _database: Database,
    copy: Database,
    /// A run that is in the copy, and the handle that its worker got before.
    run: String,
    held: String,
    /// A run that is not.
    lost: String,
}

impl SetBack {
    async fn new() -> Option<Self> {
        let database = there(Database::fresh())?;
        let shell = Shell::new();
        let data = shell.path("data");
        let daemon = start(&data, &database.url());
        let run = daemon.run_source(QUEUED, json!({})).await;
        let held = lease(&daemon).await;
        let (status, _) = send(daemon.with(&held, Method::GET, "/v1/worker/prompt")).await;
        assert_eq!(status, 200, "it is delivered");
        assert_eq!(daemon.stop(), Some(0));
        let copy = database.snapshot();
        let daemon = start(&data, &database.url());
        let lost = daemon.run_source(STEPS, json!({})).await;
        daemon.ended(&lost).await;
        assert_eq!(daemon.stop(), Some(0));
        Some(Self { shell, data, _database: database, copy, run, held, lost })
    }

    /// Checks that the task is given out again, and that only the new handle reports it.
    async fn goes_on(&self, daemon: &Daemon) {
        assert_eq!(send(daemon.get(&format!("/v1/runs/{}", self.lost))).await.0, 404);
        let again = lease(daemon).await;
        let (status, told) = report(daemon, &self.held, json!("done")).await;
        assert!((400..500).contains(&status), "the handle from before is void: {status} {told}");
        assert_eq!(report(daemon, &again, json!("done")).await.0, 200);
        assert_eq!(daemon.ended(&self.run).await["output"], "done");
    }
}

#[tokio::test]
async fn a_database_that_was_set_back_while_no_host_ran_goes_on_only_with_new_handles() {
    let Some(set_back) = SetBack::new().await else { return };
    let (data, url) = (&set_back.data, set_back.copy.url());
    assert!(Daemon::launch(data, &[("MOONSWARM_STORE", &*url)]).is_none(), "it was refused");
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(log.contains("it lacks commits that this data directory or a node has seen"), "{log}");
    assert!(log.contains("moonswarm cluster restored"), "{log}");

    let mut restored = set_back.shell.command(&["cluster", "restored"]);
    let told = restored.env("MOONSWARM_STORE", &url).output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("open runs that go on: 1"), "{told}");
    assert!(told.contains("attempts of workers that are tried again: 1"), "{told}");

    let daemon = start(data, &url);
    set_back.goes_on(&daemon).await;
    let busy = restored.output().unwrap();
    let told = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(!busy.status.success() && told.contains("stop that one first"), "{told}");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn where_a_loss_was_accepted_the_runs_of_a_database_that_was_set_back_go_on_by_themselves() {
    let Some(set_back) = SetBack::new().await else { return };
    let url = set_back.copy.url();
    let env = [("MOONSWARM_STORE", &*url), ("MOONSWARM_DURABILITY", "asynchronous")];
    let daemon = Daemon::launch(&set_back.data, &env).expect("it goes on");
    assert!(daemon.log().contains("the database has lost commits"), "{}", daemon.log());
    set_back.goes_on(&daemon).await;
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_loss_that_a_writer_finds_is_known_to_the_next_start_from_any_directory() {
    let Some(database) = there(Database::fresh()) else { return };
    let shell = Shell::new();
    let mut daemon = start(&shell.path("data"), &database.url());
    let run = daemon.run_source(STEPS, json!({})).await;
    daemon.ended(&run).await;
    // As after a failover to a standby that was behind, while the directory has seen no more than that.
    database.sql("UPDATE moonswarm.marks SET seq = 0");
    database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    // Whatever its answer is: the writer that stores it finds the loss.
    drop(daemon.post("/v1/runs", &json!({ "source": STEPS })).send().await);
    let ended = eventually("it ends", async || daemon.ends().ok_or("it runs")).await;
    assert_ne!(ended, 0);
    assert!(
        daemon.log().contains("commits that were acknowledged are missing"),
        "{}",
        daemon.log()
    );

    let (other, url) = (shell.path("other"), database.url());
    assert!(Daemon::launch(&other, &[("MOONSWARM_STORE", &*url)]).is_none(), "it was refused");
    let log = std::fs::read_to_string(other.with_extension("log")).unwrap();
    assert!(log.contains("it lacks commits"), "{log}");
    let mut restored = shell.command(&["cluster", "restored"]);
    restored.env("MOONSWARM_STORE", &url);
    eventually("the lease of the dead host has ended", async || {
        let told = restored.output().unwrap();
        when(told.status.success(), String::from_utf8_lossy(&told.stderr).into_owned())
    })
    .await;
    let daemon = start(&other, &url);
    assert_eq!(daemon.stop(), Some(0));
}
