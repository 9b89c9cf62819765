//! Nodes that an administrator drains and ends, and the metrics of each.

use rustix::process::Signal;
use serde_json::json;

use crate::{
    Cluster,
    load::Load,
    support::{DEMO, Daemon, Done, eventually, program, send, when},
};

impl Cluster {
    /// Runs `nodes` with these words over the database.
    fn nodes(&self, words: &[&str]) -> Done {
        let mut nodes = program();
        nodes.arg("nodes").args(words).env("MOONSWARM_STORE", self.database.url());
        nodes.env("MOONSWARM_CLUSTER_KEY", self.path("key")).current_dir(self.path(""));
        nodes.output().unwrap().into()
    }
}

#[tokio::test]
async fn a_drained_node_hands_its_runs_over_under_load_and_stands_by() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    let load = Load::start(4);
    load.enter("a", &a);
    load.enter("b", &b);
    load.goes_on(20).await;
    let refused = cluster.nodes(&["drain", "b"]);
    assert!(refused.code != 0 && refused.stderr.contains("it stands by"), "{refused:?}");
    let refused = cluster.nodes(&["drain", "nobody"]);
    assert!(refused.code != 0 && refused.stderr.contains("its nodes: a, b"), "{refused:?}");
    let drained = cluster.nodes(&["drain", "a"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    cluster.becomes(&["a standby", "b up"]).await;
    load.goes_on(20).await;
    // Its lease did not have to end: the other one did not declare it dead.
    assert!(!cluster.log("b").contains("no longer renew"), "{}", cluster.log("b"));
    load.judge(&a, |query| cluster.database.sql(query)).await;
}

#[tokio::test]
async fn a_hung_node_that_is_fenced_is_replaced_at_once() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    crate::send_signal(&a, Signal::STOP);
    let fenced = cluster.nodes(&["fence", "a"]);
    assert_eq!(fenced.code, 0, "{fenced:?}");
    assert!(fenced.stderr.contains("another takes its runs over"), "{fenced:?}");
    cluster.becomes(&["b up"]).await;
    // Nobody waited for a lease to end.
    assert!(!cluster.log("b").contains("no longer renew"), "{}", cluster.log("b"));
    crate::signal(&b, &run).await;
    crate::send_signal(&a, Signal::CONT);
    cluster.becomes(&["a standby", "b up"]).await;
    crate::answer(&a, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
    let shown = program().args(["nodes", "show", "b", "--data"]).arg(cluster.path("a")).output();
    let shown: Done = shown.unwrap().into();
    assert!(shown.stdout.contains("state    up"), "{shown:?}");
}

/// Returns the metrics that a node serves without a token.
async fn metrics(at: &Daemon) -> String {
    let (status, text) = send(at.bare(reqwest::Method::GET, "/metrics")).await;
    assert_eq!(status, 200, "{text}");
    text.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_node_has_its_metrics_while_it_drives_and_while_it_stands_by() {
    let Some(cluster) = Cluster::fresh() else { return };
    let config = cluster.path("moonswarm.toml");
    std::fs::write(&config, "metrics = { listen = \"127.0.0.1:0\" }\n").unwrap();
    let more = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let url = cluster.database.url();
    let start = |name: &str| cluster.start_with(&url, name, "key", &more).unwrap();
    let (a, b) = (start("a"), start("b"));
    cluster.becomes(&["a up", "b standby"]).await;
    let of = |node: &Daemon| {
        let at = node.said["metrics"].as_str().unwrap();
        Daemon::of(at.strip_suffix("/metrics").unwrap(), "")
    };
    let (of_a, of_b) = (of(&a), of(&b));
    let run = b.run_source(DEMO, json!({})).await;
    b.waits(&run, "signal").await;
    let seen = metrics(&of_a).await;
    assert!(seen.contains("moonswarm_takeovers_total{why=\"free\"} 1"), "{seen}");
    assert!(seen.contains("moonswarm_runs_open 1"), "{seen}");
    let seen = metrics(&of_b).await;
    assert!(seen.contains("moonswarm_forwarded_total{outcome=\"answered\"}"), "{seen}");
    let left = seen.lines().find_map(|it| it.strip_prefix("moonswarm_lease_remaining_seconds "));
    assert!(left.unwrap().parse::<f64>().unwrap() > 0.0, "{seen}");
    for state in ["up", "standby"] {
        assert!(seen.contains(&format!("moonswarm_nodes{{state=\"{state}\"}} 1")), "{seen}");
    }
    a.kill();
    let seen = eventually("the standby counts its takeover", async || {
        let seen = metrics(&of_b).await;
        when(seen.contains("moonswarm_takeovers_total{why=\"died\"} 1"), seen.clone())
            .map(|()| seen)
    })
    .await;
    assert!(seen.contains("moonswarm_fenced_total 0"), "{seen}");
}
