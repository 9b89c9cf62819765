//! The wall clocks of nodes: leases do not depend on them.

use std::{fs, time::Duration};

use reqwest::Method;
use serde_json::json;

use crate::{
    Cluster,
    shim::Shim,
    support::{DEMO, elapse, eventually, send, when},
};

/// A task that its worker has half an hour for.
const TIMED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "timed",
  agents = { q = { operator = "queue", queue = "q", timeout = "30m", lease = "30m" } },
  flow = function(ctx) return ctx:run("q", 1) end,
}
"#;

#[tokio::test]
async fn the_next_driver_has_its_own_clock_and_not_the_steps_of_the_one_before() {
    let Some(cluster) = Cluster::fresh() else { return };
    let shim = Shim::build(&cluster.path(""), "no file");
    let ahead = cluster.path("a-ahead");
    let clock = ("MOONSWARM_FAULT_CLOCK", ahead.to_str().unwrap());
    let env: Vec<_> = shim.env().into_iter().chain([clock]).collect();
    let a = cluster.start_with(&cluster.database.url(), "a", "key", &env);
    let a = a.unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let b = cluster.node("b");
    cluster.becomes(&["a up", "b standby"]).await;
    // Set back by an hour: a driver that took that over would be an hour late, and every time over.
    fs::write(&ahead, "-3600").unwrap();
    eventually("the step is stored", async || {
        let stored = "SELECT count(*) FROM moonswarm.meta WHERE key LIKE 'clock%'";
        let stored = cluster.database.sql(stored);
        when(a.log().contains("the wall clock was set") && stored.trim() == "1", stored)
    })
    .await;
    let run = a.run_source(TIMED, json!({})).await;
    let handle = crate::lease(&a).await;
    a.kill();
    cluster.becomes(&["b up"]).await;
    let report = b.with(&handle, Method::POST, "/v1/worker/result").json(&json!({"output": 7}));
    let (status, told) = send(report).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(b.ended(&run).await["output"], 7);
}

#[tokio::test]
async fn steps_of_the_wall_clocks_of_both_nodes_move_no_run() {
    let Some(cluster) = Cluster::fresh() else { return };
    let shim = Shim::build(&cluster.path(""), "no file");
    let of = |name: &str| cluster.path(&format!("{name}-ahead"));
    let start = |name: &str| {
        let ahead = of(name);
        let clock = ("MOONSWARM_FAULT_CLOCK", ahead.to_str().unwrap());
        let env: Vec<_> = shim.env().into_iter().chain([clock]).collect();
        let node = cluster.start_with(&cluster.database.url(), name, "key", &env);
        node.unwrap_or_else(|| panic!("{}", cluster.log(name)))
    };
    let (a, b) = (start("a"), start("b"));
    cluster.becomes(&["a up", "b standby"]).await;
    let driver = "SELECT node FROM moonswarm.nodes WHERE state = 'up'";
    let before = cluster.database.sql(driver);
    for (of_a, of_b) in [("3600", "0"), ("0", "3600"), ("-3600", "7200"), ("86400", "-86400")] {
        let run = b.run_source(DEMO, json!({})).await;
        fs::write(of("a"), of_a).unwrap();
        fs::write(of("b"), of_b).unwrap();
        // A renewal and a half: each of them renews with the new clock.
        elapse(Duration::from_secs(5)).await;
        for node in [&a, &b] {
            let (status, told) = send(node.get("/readyz")).await;
            assert_eq!(status, 200, "{told}");
        }
        crate::signal(&b, &run).await;
        crate::answer(&a, &run).await;
        assert_eq!(b.ended(&run).await["output"]["seen"], "on");
        assert_eq!(cluster.database.sql(driver), before, "no node took over");
    }
    let status = cluster.cluster(&["status", "--json"]).ok().json();
    let told = status["findings"].to_string();
    assert!(told.contains("ahead of that of a") && told.contains("ahead of that of b"), "{status}");
    // A lease ends after its time all the same.
    a.kill();
    cluster.becomes(&["b up"]).await;
}
