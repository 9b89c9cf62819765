//! Nodes that fail, hang or are cut off while they drive runs for another one, and a driver that fails.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{BEGINS, ENDS, Nodes, all_home};
use crate::{
    Cluster, free_port,
    load::Load,
    send_signal,
    support::{eventually, network::Network, when},
};

/// The time within which the runs of a helper go on when that is killed. It is held against where
/// `MOONSWARM_KILLS` asks for the long form, which has the machine for itself.
const SOON: Duration = Duration::from_secs(6);

impl Cluster {
    /// Returns the numbers of the runs that have not ended.
    fn open(&self) -> String {
        let numbers = "SELECT coalesce(string_agg(num::text, ','), '0') FROM moonswarm.runs
                       WHERE status < 5";
        self.database.sql(numbers).trim().to_owned()
    }

    /// Waits until these runs have ended.
    async fn ends(&self, open: &str) {
        eventually("the runs go on", async || {
            let left = self.database.sql(&format!(
                "SELECT count(*) FROM moonswarm.runs WHERE num IN ({open}) AND status < 5"
            ));
            when(left.trim() == "0", format!("{} left of {open}", left.trim()))
        })
        .await;
    }
}

/// Notes how long the runs of a helper took to go on, and holds it against the limit in the long form.
fn judge_pause(since: Instant, what: &str) {
    let pause = since.elapsed();
    eprintln!("{what}: the open runs had ended after {pause:?}");
    if std::env::var_os("MOONSWARM_KILLS").is_some() {
        assert!(pause < SOON, "{what}: {pause:?}");
    }
}

#[tokio::test]
async fn a_helper_is_killed_under_load_and_its_runs_go_on() {
    let Some(nodes) = Nodes::start().await else { return };
    let load = nodes.load();
    let Nodes { a, b, c: _c, cluster } = nodes;
    load.goes_on(20).await;
    load.take_away("b");
    let open = cluster.open();
    let since = Instant::now();
    b.kill();
    cluster.ends(&open).await;
    judge_pause(since, "a helper is killed");
    let b = cluster.lender("b", &[]);
    load.enter("b", &b);
    cluster.has_logged("a", BEGINS, 3).await;
    load.goes_on(20).await;
    load.judge(&b, |query| cluster.database.sql(query)).await;
    all_home(&a).await;
}

#[tokio::test]
async fn a_driver_that_lends_is_killed_under_load_and_the_next_one_lends() {
    let Some(nodes) = Nodes::start().await else { return };
    let load = nodes.load();
    let Nodes { a, b, c: _c, cluster } = nodes;
    load.goes_on(20).await;
    load.take_away("a");
    let open = cluster.open();
    a.kill();
    let driver = eventually("another node drives", async || {
        let states = cluster.states();
        let driver = states.iter().find_map(|it| it.strip_suffix(" up"));
        driver.filter(|it| *it != "a").map(str::to_owned).ok_or_else(|| states.join(", "))
    })
    .await;
    cluster.ends(&open).await;
    let a = cluster.lender("a", &[]);
    load.enter("a", &a);
    cluster.has_logged(&driver, BEGINS, 2).await;
    load.goes_on(20).await;
    load.judge(&a, |query| cluster.database.sql(query)).await;
    all_home(&b).await;
}

/// The moments of a loan: the start is stored, a batch arrives, the run is back, its helper has read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_at_any_moment_of_a_loan_loses_no_run() {
    let moments = [
        ("a", "engine.lend#9"),
        ("a", "engine.parcel#30"),
        ("a", "engine.home#5"),
        ("b", "engine.replayed#5"),
    ];
    for (dies, point) in moments {
        let Some(cluster) = Cluster::fresh() else { return };
        let more = |name| match name == dies {
            true => vec![("MOONSWARM_KILL_AT", point)],
            false => Vec::new(),
        };
        let a = cluster.lender("a", &more("a"));
        cluster.becomes(&["a up"]).await;
        let b = cluster.lender("b", &more("b"));
        cluster.has_logged("a", BEGINS, 1).await;
        let load = Load::start(4);
        load.enter("a", &a);
        load.enter("b", &b);
        let (dead, lives) = if dies == "a" { (a, &b) } else { (b, &a) };
        load.take_away(dies);
        assert!(dead.died(), "{point} is reached");
        load.goes_on(10).await;
        load.judge(lives, |query| cluster.database.sql(query)).await;
    }
}

#[tokio::test]
async fn a_helper_that_hangs_loses_its_runs_and_what_it_writes_late_is_refused() {
    let Some(nodes) = Nodes::start().await else { return };
    let load = nodes.load();
    let Nodes { a, b, c: _c, cluster } = nodes;
    load.goes_on(20).await;
    // No client waits for its answer then.
    load.take_away("b");
    load.goes_on(10).await;
    send_signal(&b, Signal::STOP);
    let open = cluster.open();
    cluster.has_logged("a", ENDS, 1).await;
    cluster.ends(&open).await;
    load.goes_on(10).await;
    send_signal(&b, Signal::CONT);
    cluster.has_logged("a", BEGINS, 3).await;
    load.enter("b", &b);
    load.goes_on(20).await;
    load.judge(&b, |query| cluster.database.sql(query)).await;
    all_home(&a).await;
}

#[tokio::test]
async fn the_network_to_the_helpers_is_cut_anywhere_and_runs_go_on() {
    let Some(cluster) = Cluster::fresh() else { return };
    let listens = free_port();
    let between = Network::before(listens);
    let (at, through) = (format!("127.0.0.1:{listens}"), format!("127.0.0.1:{}", between.port()));
    let more = [("MOONSWARM_PEER_LISTEN", &*at), ("MOONSWARM_PEER_ADDRESS", &*through)];
    let a = cluster.lender("a", &more);
    let (_b, _c) = (cluster.lender("b", &[]), cluster.lender("c", &[]));
    cluster.becomes(&["a up", "b standby", "c standby"]).await;
    // Clients use only the driver: what is cut is the way of the batches, and that of their answers.
    let load = Load::start(4);
    load.enter("a", &a);
    let both_help = async || {
        eventually("both help", async || {
            let log = cluster.log("a");
            let links = log.matches(BEGINS).count() - log.matches(ENDS).count();
            when(links == 2, log)
        })
        .await;
    };
    for (round, bytes) in [0, 60, 700, 1_500, 4_000, 20_000].into_iter().enumerate() {
        both_help().await;
        let before = between.cuts();
        match round % 2 {
            0 => between.cut_requests_after(bytes),
            _ => between.cut_answers_after(bytes),
        }
        eventually("a link is cut", async || {
            let cuts = between.cuts();
            when(cuts > before, cuts)
        })
        .await;
        load.goes_on(4).await;
    }
    both_help().await;
    let ended = cluster.log("a").matches(ENDS).count();
    between.hang(true);
    cluster.has_logged("a", ENDS, ended + 2).await;
    load.goes_on(10).await;
    // The batches that were on their way arrive now.
    between.hang(false);
    both_help().await;
    load.goes_on(10).await;
    load.judge(&a, |query| cluster.database.sql(query)).await;
    assert!(cluster.driven("b") + cluster.driven("c") > 0, "runs were lent");
    assert_eq!(cluster.states(), ["a up", "b standby", "c standby"]);
    all_home(&a).await;
}
