//! `cluster status`, while nodes are alive and when none is.

use serde_json::{Value, json};

use crate::{
    Cluster,
    support::{DEMO, eventually, send, when},
};

fn states(status: &Value) -> Vec<String> {
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["state"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn the_state_of_a_cluster_is_told_by_its_database_also_when_no_node_answers() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    let status = eventually("both clocks are compared", async || {
        let status = cluster.cluster(&["status", "--json"]).ok().json();
        let clocks = status["nodes"].as_array().unwrap().iter().all(|it| it["clock_ms"].is_i64());
        when(clocks, status.clone()).map(|()| status)
    })
    .await;
    assert_eq!(states(&status), ["a up", "b standby"], "{status}");
    assert_eq!(status["driver"], "a", "{status}");
    assert_eq!(status["format"], status["feature"], "{status}");
    assert_eq!((&status["is_cluster"], &status["held"]), (&json!(true), &json!(false)), "{status}");
    assert!(status["incarnation"].as_str().is_some_and(|it| !it.is_empty()), "{status}");
    let durability = &status["durability"];
    assert_eq!(
        (&durability["configured"], &durability["standbys"]),
        (&json!("synchronous"), &json!(0))
    );
    for node in status["nodes"].as_array().unwrap() {
        assert!(node["alive"] == true && node["lease_ms"].as_i64().unwrap() > 0, "{node}");
        assert!(node["clock_ms"].as_i64().unwrap().abs() < 5_000, "{node}");
    }
    let connections = &status["connections"];
    let count = |name: &str| connections[name].as_u64().unwrap();
    assert!(0 < count("moonswarm") && count("moonswarm") <= count("used"), "{status}");
    assert!(count("used") <= count("max"), "{status}");

    let plain = cluster.cluster(&["status"]).ok().stdout;
    for part in ["driver       a", "format", "connections", "lease"] {
        assert!(plain.contains(part), "{part:?} is not in {plain}");
    }

    // A node that is late, and what is left when all are gone.
    b.kill();
    cluster.database.sql(
        "UPDATE moonswarm.nodes SET lease_until = lease_until - interval '1 minute' WHERE state = 'standby'",
    );
    let status = cluster.cluster(&["status", "--json"]).ok().json();
    let says = |status: &Value, part: &str| {
        let findings = status["findings"].as_array().unwrap();
        let found = findings.iter().any(|it| it["says"].as_str().unwrap().contains(part));
        assert!(found, "{part:?} is not in {status}");
    };
    says(&status, "do not renew their leases: b");
    says(&status, "no node stands by");
    assert_eq!(a.stop(), Some(0));
    let status = cluster.cluster(&["status", "--json"]).exits(1).json();
    assert_eq!(status["driver"], Value::Null, "{status}");
    says(&status, "no living node has the runs");

    let mut nowhere = crate::program();
    nowhere.args(["cluster", "status", "--store", "postgres://localhost:1/none"]);
    let told = nowhere.current_dir(cluster.path("")).output().unwrap();
    assert!(!told.status.success(), "{told:?}");
}

/// Nodes that come and go leave rows behind.
#[tokio::test]
async fn rows_of_dead_standbys_hide_no_node_and_end() {
    let Some(cluster) = Cluster::fresh() else { return };
    let a = cluster.node("a");
    cluster.becomes(&["a up"]).await;
    let dead = |name: &str, count: u32, since: &str| {
        cluster.database.sql(&format!(
            "INSERT INTO moonswarm.nodes (name, home, version, state, lease_until)
             SELECT '{name}', '{name}' || i, '0.1.0', 'standby', clock_timestamp() - interval '{since}'
             FROM generate_series(1, {count}) i"
        ));
    };
    dead("lately", 70, "1 minute");
    dead("long-ago", 70, "1 hour");
    let b = cluster.node("b");
    eventually("the driver answers through the standby", async || {
        let (status, told) = send(b.get("/v1/runs")).await;
        when(status == 200, told)
    })
    .await;
    let states = cluster.states();
    let count = |name: &str| states.iter().filter(|it| *it == name).count();
    assert_eq!((count("a up"), count("b standby")), (1, 1), "{states:?}");
    assert_eq!((count("lately standby"), count("long-ago standby")), (70, 0), "{states:?}");
    drop(a);
}
