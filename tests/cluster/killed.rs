//! One of three nodes is killed again and again, under load.

use std::time::{Duration, Instant};

use crate::{
    Cluster,
    load::Load,
    support::{Daemon, Dice, eventually, when},
};

/// The names of the nodes.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The time within which the runs of a killed node go on, with the usual lease. It is held against
/// where `MOONSWARM_KILLS` asks for the long form, which has the machine for itself.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn whichever_of_three_nodes_is_killed_nothing_is_lost_and_the_others_go_on() {
    let long = std::env::var("MOONSWARM_KILLS").ok().map(|it| it.parse::<u32>().unwrap());
    let Some(cluster) = Cluster::fresh() else { return };
    let mut nodes = Vec::new();
    let load = Load::start(4);
    for name in NAMES {
        let node = cluster.node(name);
        load.enter(name, &node);
        nodes.push((name, node));
    }
    cluster.becomes(&["a up", "b standby", "c standby"]).await;
    let mut dice = Dice(0x5eed_2026);
    let mut pauses = Vec::new();
    for round in 0..long.unwrap_or(2) {
        load.goes_on(20).await;
        let driver = cluster.driver().await;
        // Three times of four it is the one that has the runs.
        let drives = round == 0 || dice.roll(4) > 0;
        let at = nodes.iter().position(|(name, _)| (*name == driver) == drives).unwrap();
        let (name, victim) = nodes.remove(at);
        load.take_away(name);
        let open = cluster.database.sql(
            "SELECT coalesce(string_agg(num::text, ','), '0') FROM moonswarm.runs WHERE status < 5",
        );
        let since = Instant::now();
        victim.kill();
        if drives {
            eventually("another node drives", async || {
                let now = cluster.states();
                when(
                    now.iter().any(|it| it.ends_with(" up") && !it.starts_with(name)),
                    now.join(", "),
                )
            })
            .await;
        }
        eventually("the runs of the killed node go on", async || {
            let left = cluster.database.sql(&format!(
                "SELECT count(*) FROM moonswarm.runs WHERE num IN ({}) AND status < 5",
                open.trim()
            ));
            when(left.trim() == "0", format!("{} left of {}", left.trim(), open.trim()))
        })
        .await;
        if drives {
            pauses.push(since.elapsed());
        }
        let node: Daemon = cluster.node(name);
        load.enter(name, &node);
        nodes.push((name, node));
    }
    let (disturbed, acknowledged) = (load.disturbed(), load.acknowledged());
    load.judge(&nodes[0].1, |query| cluster.database.sql(query)).await;
    let longest = pauses.iter().max().copied().unwrap_or_default();
    eprintln!(
        "{} kills of a driver, {acknowledged} runs; they went on after at most {longest:?}; \
         refused at others: {disturbed:?}",
        pauses.len()
    );
    if long.is_some() {
        assert_eq!(disturbed, [""; 0], "the requests at other nodes are answered");
        assert!(longest < SOON, "{pauses:?}");
    }
}
