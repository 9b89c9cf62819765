//! Starts that are no run, and runs that stay at the node that drives.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::json;

use super::{ANCHOR, BEGINS, DRIVEN, Nodes, STEPS, all_home, lent};
use crate::{
    Cluster,
    support::{Daemon, send},
};

#[tokio::test]
async fn a_start_that_is_repeated_is_one_run_and_one_that_is_refused_is_not_lent() {
    let Some(nodes) = Nodes::start().await else { return };
    let keyed = |node: &Daemon, key: &str| {
        node.post("/v1/runs", &json!({ "source": STEPS })).header("idempotency-key", key)
    };
    let mut runs = BTreeSet::new();
    for key in ["one", "two", "three", "four", "five", "six"] {
        let (first, second, third) = tokio::join!(
            send(keyed(&nodes.a, key)),
            send(keyed(&nodes.b, key)),
            send(keyed(&nodes.c, key)),
        );
        let ids = [first, second, third].map(|(status, view)| {
            assert!(status < 300, "{status} {view}");
            view["id"].as_str().unwrap().to_owned()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{key}: {ids:?}");
        runs.extend(ids);
    }
    assert_eq!(runs.len(), 6);

    // A token that is revoked while runs are started with it.
    let (status, stored) =
        send(nodes.a.put("/v1/blueprints/steps", &json!({ "source": STEPS }))).await;
    assert_eq!(status, 200, "{stored}");
    let (status, minted) =
        send(nodes.a.post("/v1/tokens", &json!({ "role": "operator", "ttl": "1h" }))).await;
    assert_eq!(status, 201, "{minted}");
    let (token, jti) = (minted["token"].as_str().unwrap(), minted["jti"].as_str().unwrap());
    let start = |turn: usize| {
        let request = nodes.any(turn).with(token, Method::POST, "/v1/runs");
        tokio::spawn(send(request.json(&json!({ "blueprint": "steps" }))))
    };
    let mut starts: Vec<_> = (0..24).map(start).collect();
    let first = starts.swap_remove(0).await.unwrap();
    assert_eq!(first.0, 201, "{}", first.1);
    let (status, told) = send(nodes.b.delete(&format!("/v1/tokens/{jti}"))).await;
    assert_eq!(status, 204, "{told}");
    let mut answers = vec![first];
    for start in starts {
        answers.push(start.await.unwrap());
    }
    for (status, view) in answers {
        match status {
            201 => assert!(runs.insert(view["id"].as_str().unwrap().to_owned()), "{view}"),
            _ => assert!(matches!(status, 401 | 403), "{status} {view}"),
        }
    }
    for run in &runs {
        assert_eq!(nodes.c.ended(run).await["output"], "over");
    }
    let stored = nodes.cluster.database.sql("SELECT count(*) FROM moonswarm.runs");
    assert_eq!(stored.trim(), runs.len().to_string(), "what was refused is no run");
    all_home(&nodes.b).await;
}

/// Starts a run that waits, and others beside it, until these have ended.
async fn drive_some(node: &Daemon) {
    node.run_source(ANCHOR, json!({})).await;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(node.run_source(STEPS, json!({})).await);
    }
    for run in runs {
        assert_eq!(node.ended(&run).await["output"], "over");
    }
}

#[tokio::test]
async fn a_node_that_lends_nothing_takes_nothing_either() {
    let Some(cluster) = Cluster::fresh() else { return };
    let off = [("MOONSWARM_CLUSTER_LEND", "off")];
    let (a, b) = (cluster.lender("a", &[]), cluster.lender("b", &[]));
    let c = cluster.node_with("c", &off);
    cluster.becomes(&["a up", "b standby", "c standby"]).await;
    cluster.has_logged("a", BEGINS, 1).await;
    drive_some(&c).await;
    cluster.has_logged("b", DRIVEN, 1).await;
    assert_eq!(cluster.driven("c"), 0, "{}", cluster.log("c"));
    assert_eq!(cluster.log("a").matches(BEGINS).count(), 1, "{}", cluster.log("a"));
    // The other way round: the one that drives lends nothing.
    assert_eq!(b.stop(), Some(0));
    assert_eq!(a.stop(), Some(0));
    cluster.becomes(&["c up"]).await;
    let before = cluster.driven("b");
    let b = cluster.lender("b", &[]);
    drive_some(&b).await;
    cluster.has_logged("c", DRIVEN, 6).await;
    assert_eq!(cluster.driven("b"), before, "{}", cluster.log("b"));
    assert!(!cluster.log("c").contains(BEGINS), "{}", cluster.log("c"));
}

#[tokio::test]
async fn a_driver_with_time_keeps_its_runs_by_default() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    cluster.has_logged("a", BEGINS, 1).await;
    for node in [&a, &b, &a, &b] {
        let run = node.run_source(STEPS, json!({})).await;
        assert_eq!(node.ended(&run).await["output"], "over");
    }
    cluster.has_logged("a", DRIVEN, 4).await;
    assert_eq!(cluster.driven("b"), 0, "{}", cluster.log("b"));
}

#[tokio::test]
async fn a_driver_of_another_release_lends_nothing() {
    let Some(cluster) = Cluster::fresh() else { return };
    // The older one makes the tables, so that it can work on them.
    let present = cluster.lender("present", &[]);
    let next = cluster.lender("next", &[("MOONSWARM_NEXT_RELEASE", "adds")]);
    assert_eq!(present.stop(), Some(0));
    cluster.becomes(&["next up"]).await;
    let present = cluster.lender("present", &[]);
    cluster.becomes(&["next up", "present standby"]).await;
    drive_some(&present).await;
    cluster.has_logged("next", DRIVEN, 6).await;
    assert_eq!(cluster.driven("present"), 0, "{}", cluster.log("present"));
    assert_eq!(lent(&next).await, 0);
}
