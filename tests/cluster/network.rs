//! Nodes and daemons over a network that hangs, breaks and cuts, between them and to the database.

use std::time::Duration;

use serde_json::json;

use crate::{
    Cluster, answer,
    load::Load,
    signal,
    support::{
        DEMO, Daemon, Dice, elapse, eventually, network::Network, postgres::Server, send, skip,
        when,
    },
};

/// The number of connections that are cut while runs go on.
const CUTS: u32 = 24;
/// The bytes after which one is cut, at most: several groups of commits.
const FAR: u64 = 6_000;

#[tokio::test]
async fn connections_are_cut_anywhere_while_runs_go_on_and_each_step_counts_once() {
    let Some(cluster) = Cluster::fresh() else { return };
    let network = Network::before(cluster.database.port());
    let url = network.through(&cluster.database.tcp_url(), cluster.database.port());
    let data = cluster.path("alone");
    let daemon = Daemon::launch(&data, &[("MOONSWARM_STORE", &url)]).unwrap();
    let load = Load::start(3);
    load.enter("alone", &daemon);
    let mut dice = Dice(0x00c0_ffee);
    for round in 0..CUTS {
        load.goes_on(1).await;
        let far = usize::try_from(dice.roll(FAR)).unwrap();
        match round % 4 {
            0 => network.cut_requests_after(far),
            1 => network.cut_answers_after(far),
            2 => network.cut_before_commit(),
            _ => network.lose_answer_to_commit(),
        }
        eventually("a connection is cut", async || {
            let cuts = network.cuts();
            when(cuts > round, cuts)
        })
        .await;
    }
    load.goes_on(2).await;
    load.judge(&daemon, |query| cluster.database.sql(query)).await;
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_network_that_hangs_past_the_lease_is_waited_for() {
    let Some(cluster) = Cluster::fresh() else { return };
    let network = Network::before(cluster.database.port());
    let url = network.through(&cluster.database.tcp_url(), cluster.database.port());
    let data = cluster.path("alone");
    let daemon = Daemon::launch(&data, &[("MOONSWARM_STORE", &url)]).unwrap();
    let load = Load::start(3);
    load.enter("alone", &daemon);
    load.goes_on(6).await;
    network.hang(true);
    // The lease of a daemon without a cluster has ten seconds.
    elapse(Duration::from_secs(12)).await;
    assert_eq!(send(daemon.get("/healthz")).await.0, 200, "the process lives");
    assert_eq!(send(daemon.get("/readyz")).await.0, 503, "it is not ready");
    network.hang(false);
    load.goes_on(6).await;
    load.judge(&daemon, |query| cluster.database.sql(query)).await;
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_driver_is_cut_off_from_the_database_under_load_and_nothing_is_lost() {
    let Some(cluster) = Cluster::fresh() else { return };
    let network = Network::before(cluster.database.port());
    let url = network.through(&cluster.database.tcp_url(), cluster.database.port());
    let a = cluster.start_over(&url, "a", "key").unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let b = cluster.node("b");
    cluster.becomes(&["a up", "b standby"]).await;
    let load = Load::start(4);
    load.enter("a", &a);
    load.enter("b", &b);
    load.goes_on(20).await;
    network.hang(true);
    // What a load balancer does with a node that says that it is not ready.
    eventually("the driver is not ready", async || {
        let (status, told) = send(a.get("/readyz")).await;
        when(status == 503, told)
    })
    .await;
    load.take_away("a");
    cluster.becomes(&["b up"]).await;
    load.goes_on(20).await;
    network.hang(false);
    cluster.becomes(&["a standby", "b up"]).await;
    load.enter("a", &a);
    load.goes_on(20).await;
    load.judge(&a, |query| cluster.database.sql(query)).await;
}

#[tokio::test]
async fn a_hung_driver_under_load_commits_nothing_after_another_took_over() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (a, b) = (cluster.node("a"), cluster.node("b"));
    cluster.becomes(&["a up", "b standby"]).await;
    let load = Load::start(4);
    load.enter("a", &a);
    load.enter("b", &b);
    load.goes_on(20).await;
    load.take_away("a");
    crate::send_signal(&a, rustix::process::Signal::STOP);
    cluster.becomes(&["b up"]).await;
    load.goes_on(20).await;
    crate::send_signal(&a, rustix::process::Signal::CONT);
    cluster.becomes(&["a standby", "b up"]).await;
    load.enter("a", &a);
    load.goes_on(20).await;
    load.judge(&a, |query| cluster.database.sql(query)).await;
}

#[tokio::test]
async fn a_driver_that_only_its_peers_cannot_reach_keeps_the_runs() {
    let Some(cluster) = Cluster::fresh() else { return };
    let listens = crate::free_port();
    let peers = Network::before(listens);
    let (at, through) = (format!("127.0.0.1:{listens}"), format!("127.0.0.1:{}", peers.port()));
    let more = [("MOONSWARM_PEER_LISTEN", &*at), ("MOONSWARM_PEER_ADDRESS", &*through)];
    let a = cluster.start_with(&cluster.database.url(), "a", "key", &more);
    let a = a.unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let b = cluster.node("b");
    cluster.becomes(&["a up", "b standby"]).await;
    let run = b.run_source(DEMO, json!({})).await;
    peers.refuse(true);
    // Both reach the database, so nobody takes over, and the driver goes on.
    let (status, told) = send(b.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!((status, &told["code"]), (503, &json!("no_driver")), "{told}");
    assert_eq!(send(a.get("/readyz")).await.0, 200);
    signal(&a, &run).await;
    assert_eq!(cluster.states(), ["a up", "b standby"]);
    peers.refuse(false);
    answer(&b, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
    // Connections that stay open and bring nothing are the same.
    let other = a.run_source(DEMO, json!({})).await;
    peers.hang(true);
    let (status, told) = send(b.get(&format!("/v1/runs/{other}"))).await;
    assert!(matches!(status, 502..=504), "{status} {told}");
    peers.hang(false);
    assert_eq!(send(b.get(&format!("/v1/runs/{other}"))).await.0, 200);
    assert_eq!(cluster.states(), ["a up", "b standby"]);
}

#[tokio::test]
async fn a_database_that_stops_at_once_is_waited_for_by_all_nodes_and_nothing_is_lost() {
    let Ok(server) = Server::own().map_err(|why| skip("a cluster over PostgreSQL", &why)) else {
        return;
    };
    let name = server.create_database();
    let Some(cluster) = Cluster::fresh() else { return };
    let url = server.url(&name);
    let start = |node: &str| cluster.start_over(&url, node, "key");
    let (a, b) = (start("a").unwrap(), start("b").unwrap());
    let load = Load::start(4);
    load.enter("a", &a);
    load.enter("b", &b);
    load.goes_on(20).await;
    for _ in 0..2 {
        server.stop();
        server.start();
        load.goes_on(20).await;
    }
    load.judge(&b, |query| server.sql(&name, query)).await;
    assert!(!cluster.log("a").contains("acknowledged are missing"), "{}", cluster.log("a"));
}

#[tokio::test]
async fn a_failover_to_a_synchronous_standby_under_load_loses_nothing() {
    let Ok(primary) = Server::own().map_err(|why| skip("a cluster over PostgreSQL", &why)) else {
        return;
    };
    let name = primary.create_database();
    let Some(cluster) = Cluster::fresh() else { return };
    let standby = primary.synchronous_standby().unwrap();
    let url = primary.url_with(&standby, &name);
    let start = |node: &str| cluster.start_over(&url, node, "key");
    let (a, b) = (start("a").unwrap(), start("b").unwrap());
    let load = Load::start(4);
    load.enter("a", &a);
    load.enter("b", &b);
    load.goes_on(20).await;
    primary.stop();
    standby.promote();
    load.goes_on(20).await;
    load.judge(&b, |query| standby.sql(&name, query)).await;
}
