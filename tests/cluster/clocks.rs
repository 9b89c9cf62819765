//! The wall clocks of nodes: leases do not depend on them.

use std::{fs, time::Duration};

use serde_json::json;

use crate::{
    Cluster,
    shim::Shim,
    support::{DEMO, elapse, send},
};

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
