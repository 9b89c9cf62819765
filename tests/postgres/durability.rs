//! What a failover may lose: asynchronous standbys are refused unless they are asked for, and what such
//! a failover loses is noticed.

use serde_json::json;

use crate::{
    STEPS, start,
    support::{
        DEMO, Daemon, Shell, eventually, eventually_blocking,
        postgres::{Database, Server},
        program, send, when,
    },
    there,
};

const FOLLOWS: &str = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'";

#[tokio::test]
async fn an_asynchronous_standby_is_refused_unless_it_is_asked_for() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let standby = primary.standby().unwrap();
    primary.wait_for(FOLLOWS);
    let key = shell.path("key");
    assert!(program().args(["cluster", "key", "--out"]).arg(&key).status().unwrap().success());
    let url = primary.url(&name);
    // A daemon alone, a node of a cluster, and what the doctor says of both.
    for more in [None, Some(("MOONSWARM_CLUSTER_KEY", key.to_str().unwrap()))] {
        let mut serve = shell.command(&["serve", "--listen", "127.0.0.1:0", "--data", "other"]);
        let refused = serve.env("MOONSWARM_STORE", &url).envs(more).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("all asynchronous"), "{told}");
        assert!(told.contains("--durability asynchronous"), "{told}");
    }
    let mut doctor = shell.command(&["doctor", "--data", "other", "--store", &url]);
    let told = String::from_utf8_lossy(&doctor.output().unwrap().stdout).into_owned();
    assert!(told.contains("fail  database: 1 standbys follow it, all asynchronous"), "{told}");
    doctor.args(["--durability", "asynchronous"]);
    let told = String::from_utf8_lossy(&doctor.output().unwrap().stdout).into_owned();
    assert!(told.contains("durability is asynchronous, as configured"), "{told}");

    let config = shell.path("moonswarm.toml");
    std::fs::write(&config, "durability = \"asynchronous\"\n").unwrap();
    let env = [("MOONSWARM_STORE", &*url), ("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&shell.path("data"), &env).expect("it is asked for");
    let (status, ready) = send(daemon.get("/readyz")).await;
    assert_eq!((status, &ready["durability"]), (200, &json!("asynchronous")), "{ready}");
    assert_eq!(daemon.stop(), Some(0));

    // Synchronous, it needs no word of anybody.
    primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    primary.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
    let daemon = start(&shell.path("data"), &url);
    let (_, ready) = send(daemon.get("/readyz")).await;
    assert_eq!(ready.get("durability"), None, "{ready}");
    drop(standby);
}

#[tokio::test]
async fn a_standby_that_becomes_asynchronous_later_is_reported_and_the_daemon_goes_on() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let daemon = start(&shell.path("data"), &primary.url(&name));
    let _standby = primary.standby().unwrap();
    eventually("it is noticed", async || {
        let (_, ready) = send(daemon.get("/readyz")).await;
        when(ready["durability"] == "asynchronous", ready)
    })
    .await;
    assert!(daemon.log().contains("less durable than configured"), "{}", daemon.log());
    let run = daemon.run_source(STEPS, json!({})).await;
    assert_eq!(daemon.ended(&run).await["output"], 210);
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_commit_whose_wait_for_the_standby_was_ended_is_not_acknowledged_before_it_is_there() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let standby = primary.synchronous_standby().unwrap();
    let daemon = start(&shell.path("data"), &primary.url(&name));
    standby.stop();
    let request = daemon.post("/v1/runs", &json!({ "source": STEPS, "input": {} }));
    let asked = tokio::spawn(send(request));
    // Somebody wants the commits to go on, and ends their waits.
    let waits = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
         WHERE wait_event = 'SyncRep' AND application_name ~ '^moonswarm/[0-9]+/[0-9]+$'";
    eventually("the commit is found", async || {
        primary.sql(&name, waits);
        let (_, metrics) = send(daemon.get("/metrics")).await;
        let metrics = metrics.as_str().unwrap_or_default().to_owned();
        let found = "moonswarm_unknown_outcomes_total{found=\"committed\"}";
        when(metrics.contains(found), metrics)
    })
    .await;
    assert!(!asked.is_finished(), "it is on no standby, which a failover would lose");
    standby.start();
    let (status, view) = asked.await.unwrap();
    assert!(status < 300, "{view}\n{}", daemon.log());
    assert_eq!(daemon.ended(view["id"].as_str().unwrap()).await["output"], 210);
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_failover_to_a_standby_that_lacks_a_commit_is_noticed() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let standby = primary.standby().unwrap();
    primary.wait_for(FOLLOWS);
    let both = primary.url_with(&standby, &name);
    let env = [("MOONSWARM_STORE", &*both), ("MOONSWARM_DURABILITY", "asynchronous")];
    let launch = || Daemon::launch(&shell.path("data"), &env).unwrap();
    let mut daemon = launch();
    let run = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&run, "signal").await;
    eventually_blocking("the standby has followed", || {
        let behind = "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication";
        let seen = primary.sql(&name, behind);
        when(seen.trim() == "t", seen)
    });
    // The standby sees nothing of what comes now.
    standby.stop();
    let lost = daemon.run_source(STEPS, json!({})).await;
    daemon.ended(&lost).await;
    primary.stop();
    standby.start();
    standby.promote();
    let ended = eventually("it ends", async || daemon.ends().ok_or("it runs")).await;
    assert_ne!(ended, 0);
    let log = daemon.log();
    assert!(log.contains("commits that were acknowledged are missing"), "{log}");
    let daemon = launch();
    let (status, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!((status, &view["status"]), (200, &json!("waiting")), "{view}");
    assert_eq!(send(daemon.get(&format!("/v1/runs/{lost}"))).await.0, 404);
}

#[test]
fn a_server_that_does_not_sync_by_default_syncs_the_commits_of_a_daemon() {
    let Some(database) = there(Database::fresh()) else { return };
    let shell = Shell::new();
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    let alter = format!("ALTER DATABASE {name} SET synchronous_commit = off");
    Server::shared().unwrap().sql("postgres", &alter);
    assert_eq!(database.sql("SHOW synchronous_commit").trim(), "off");
    let daemon = start(&shell.path("data"), &database.url());
    let mut doctor = shell.command(&["doctor", "--data", "data", "--store", &database.url()]);
    let told = String::from_utf8_lossy(&doctor.output().unwrap().stdout).into_owned();
    assert!(told.contains("synchronous_commit on"), "{told}");
    drop(daemon);
}
