//! A rolling upgrade, with two releases that differ in their format: the present one, and one that stands for
//! the next.

use rustix::process::Signal;
use serde_json::json;

use crate::{
    Cluster, PULL, answer, lease,
    support::{DEMO, Daemon, Done, eventually, program, send, when},
};

/// What makes a process stand for the next release: one whose tables the present one can work on, and one whose
/// tables it cannot work on.
const ADDS: (&str, &str) = ("MOONSWARM_NEXT_RELEASE", "adds");
const BREAKS: (&str, &str) = ("MOONSWARM_NEXT_RELEASE", "breaks");

impl Cluster {
    /// Runs `cluster` with these words over the database.
    pub fn cluster(&self, words: &[&str]) -> Done {
        let mut cluster = program();
        cluster.arg("cluster").args(words).env("MOONSWARM_STORE", self.database.url());
        cluster.current_dir(self.path("")).output().unwrap().into()
    }

    fn newer(&self, name: &str, kind: (&str, &str)) -> Option<Daemon> {
        self.start_with(&self.database.url(), name, "key", &[kind])
    }

    /// Returns the format of the tables, the oldest that is admitted, the one that is written, and whether an
    /// administrator holds it; each less that of the present release.
    fn formats(&self, present: i32) -> String {
        let sql = format!(
            "SELECT concat_ws(' ', format - {present}, oldest - {present}, feature - {present}, held)
             FROM moonswarm.cluster"
        );
        self.database.sql(&sql).trim().to_owned()
    }

    fn format(&self) -> i32 {
        self.database.sql("SELECT format FROM moonswarm.cluster").trim().parse().unwrap()
    }
}

#[tokio::test]
async fn two_releases_run_side_by_side_until_the_upgrade_is_ended() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (a, c) = (cluster.node("a"), cluster.node("c"));
    cluster.becomes(&["a up", "c standby"]).await;
    let present = cluster.format();
    assert_eq!(cluster.formats(present), "0 0 0 f");
    let run = a.run_source(DEMO, json!({})).await;
    let pulled = a.run_source(PULL, json!({})).await;
    let handle = lease(&a).await;
    a.waits(&run, "signal").await;

    // The newer one changes the tables beside the older ones, which go on.
    let b = cluster.newer("b", ADDS).unwrap_or_else(|| panic!("{}", cluster.log("b")));
    cluster.becomes(&["a up", "b standby", "c standby"]).await;
    assert_eq!(cluster.formats(present), "1 0 0 f");
    crate::signal(&b, &run).await;
    let refused = cluster.cluster(&["finalize"]).exits(1);
    assert!(refused.stderr.contains("older release are alive: a ("), "{refused:?}");

    // The newer one of two takes over, and the runs may go back as long as the upgrade has not ended.
    a.kill();
    cluster.becomes(&["b up", "c standby"]).await;
    b.waits(&run, "task").await;
    b.kill();
    cluster.becomes(&["c up"]).await;
    let report = c.with(&handle, reqwest::Method::POST, "/v1/worker/result");
    let (status, told) = send(report.json(&json!({"output": 7}))).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(c.ended(&pulled).await["output"], 7);

    // Both are upgraded; the administrator holds what cannot be undone, and then ends the upgrade.
    let b = cluster.newer("b", ADDS).unwrap();
    cluster.becomes(&["b standby", "c up"]).await;
    cluster.cluster(&["finalize", "--hold"]).ok();
    assert_eq!(c.stop(), Some(0));
    cluster.becomes(&["b up"]).await;
    assert_eq!(cluster.formats(present), "1 0 0 t");
    let c = cluster.newer("c", ADDS).unwrap();
    cluster.becomes(&["b up", "c standby"]).await;
    cluster.cluster(&["finalize"]).ok();
    assert_eq!(cluster.formats(present), "1 1 1 f");

    // The older release is told what to do.
    assert!(cluster.start("a", "key").is_none());
    let told = cluster.log("a");
    assert!(told.contains("use release") && told.contains("-next or a newer one"), "{told}");
    let mut doctor = program();
    doctor.args(["doctor", "--data"]).arg(cluster.path("d")).current_dir(cluster.path(""));
    let told: Done = doctor.env("MOONSWARM_STORE", cluster.database.url()).output().unwrap().into();
    assert!(told.stdout.contains("next: use release"), "{told:?}");
    answer(&c, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
}

#[tokio::test]
async fn the_nodes_end_an_upgrade_when_no_older_one_was_alive_for_a_while() {
    let Some(cluster) = Cluster::fresh() else { return };
    let a = cluster.node("a");
    let present = cluster.format();
    let b = cluster.newer("b", ADDS).unwrap_or_else(|| panic!("{}", cluster.log("b")));
    assert_eq!(a.stop(), Some(0));
    cluster.becomes(&["b up"]).await;
    let run = b.run_source(DEMO, json!({})).await;
    b.waits(&run, "signal").await;
    assert_eq!(cluster.formats(present), "1 0 0 f", "the older one was alive a moment ago");
    // As if that were long ago.
    cluster.database.sql(
        "UPDATE moonswarm.nodes SET lease_until = lease_until - interval '11 minutes'
         WHERE state = 'gone'",
    );
    eventually("the upgrade ends", async || {
        let formats = cluster.formats(present);
        when(formats == "1 1 1 f", formats)
    })
    .await;
    crate::signal(&b, &run).await;
}

#[tokio::test]
async fn a_node_that_was_away_while_the_upgrade_ended_does_not_drive() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (a, mut c) = (cluster.node("a"), cluster.node("c"));
    cluster.becomes(&["a up", "c standby"]).await;
    let present = cluster.format();
    let b = cluster.newer("b", ADDS).unwrap_or_else(|| panic!("{}", cluster.log("b")));
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    assert_eq!(a.stop(), Some(0));
    cluster.becomes(&["b up", "c standby"]).await;
    crate::send_signal(&c, Signal::STOP);
    eventually("nobody older is alive", async || {
        let done = cluster.cluster(&["finalize"]);
        when(done.code == 0, done.stderr)
    })
    .await;
    assert_eq!(cluster.formats(present), "1 1 1 f");
    assert_eq!(cluster.states(), ["b up"]);
    b.kill();
    crate::send_signal(&c, Signal::CONT);
    assert!(c.ends().is_some_and(|code| code != 0), "it ends by itself, with an error");
    let log = cluster.log("c");
    assert!(log.contains("-next or a newer one"), "{log}");
    assert!(!log.contains("this node has the runs now"), "{log}");
    let b = cluster.newer("b", ADDS).unwrap();
    cluster.becomes(&["b up"]).await;
    crate::signal(&b, &run).await;
}

#[tokio::test]
async fn a_release_whose_tables_the_older_one_cannot_work_on_waits_until_that_has_ended() {
    let Some(cluster) = Cluster::fresh() else { return };
    let a = cluster.node("a");
    let present = cluster.format();
    assert!(cluster.newer("b", BREAKS).is_none());
    let told = cluster.log("b");
    assert!(told.contains("stop all hosts of older releases first"), "{told}");
    assert_eq!(cluster.formats(present), "0 0 0 f");
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    assert_eq!(a.stop(), Some(0));
    let b = cluster.newer("b", BREAKS).unwrap_or_else(|| panic!("{}", cluster.log("b")));
    assert_eq!(cluster.formats(present), "1 1 0 f");
    assert!(cluster.start("a", "key").is_none());
    assert!(cluster.log("a").contains("-next or a newer one"), "{}", cluster.log("a"));
    crate::signal(&b, &run).await;
}
