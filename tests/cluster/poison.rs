//! A run that kills each node that takes it up: it does not walk through the cluster for ever.

use crate::{
    Cluster,
    support::culprit::{Culprit, configuration},
};

#[tokio::test]
async fn a_run_that_kills_every_node_that_takes_it_up_is_found_by_the_next() {
    let Some(cluster) = Cluster::fresh() else { return };
    let config = configuration(cluster.home.path());
    let url = cluster.database.url();
    let more = [
        ("MOONSWARM_CONFIG", config.to_str().unwrap()),
        ("MOONSWARM_SAFE_MODE", "on"),
        ("MOONSWARM_CLUSTER_LEASE", "2s"),
    ];
    let start = |name: &str| cluster.start_with(&url, name, "key", &more);
    let node = start("a").unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let culprit = Culprit::begin(&node, cluster.path("gate")).await;
    node.kill();
    // Each time another machine takes the runs over.
    let (node, deaths) = culprit
        .is_found(|deaths| {
            let name = ["b", "c", "a"][deaths % 3];
            culprit.aim_at(&cluster.path(name));
            start(name)
        })
        .await;
    assert!(deaths >= 3, "more than one node had to see it: {deaths}");
    culprit.is_alone(&node).await;
}
