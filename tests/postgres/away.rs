//! A failover to a standby.

use serde_json::json;

use crate::{
    STEPS, start,
    support::{
        DEMO, Shell, eventually,
        postgres::{Database, PASSWORD, Server},
        send, when,
    },
    there,
};

#[tokio::test]
async fn a_failover_to_a_synchronous_standby_loses_nothing() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let standby = primary.standby().unwrap();
    primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    eventually("the standby is synchronous", async || {
        let seen = primary.sql("postgres", "SELECT sync_state FROM pg_stat_replication");
        when(seen.trim() == "sync", seen)
    })
    .await;
    let alone = standby.tcp_url(&name);
    let mut serve = shell.command(&["serve", "--listen", "127.0.0.1:0", "--data", "other"]);
    let refused = serve.env("MOONSWARM_STORE", alone).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("name the primary"), "{told}");

    let password = PASSWORD.replace('%', "%25");
    let (first, second) = (primary.port(), standby.port());
    let both =
        format!("postgres://postgres:{password}@127.0.0.1:{first},127.0.0.1:{second}/{name}");
    let daemon = start(&shell.path("data"), &both);
    let waiting = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&waiting, "signal").await;
    let mut begun = Vec::new();
    for _ in 0..8 {
        begun.push(daemon.run_source(STEPS, json!({})).await);
    }
    primary.stop();
    standby.promote();
    for run in &begun {
        let view = eventually("the runs go on over the standby", async || {
            let (status, view) = send(daemon.get(&format!("/v1/runs/{run}?wait=60s"))).await;
            when(status == 200 && !view["ended_at"].is_null(), view.to_string()).map(|()| view)
        })
        .await;
        assert_eq!(view["output"], 210, "{view}\n{}", daemon.log());
    }
    let path = format!("/v1/runs/{waiting}/signals/go");
    let (status, told) = send(daemon.post(&path, &json!("on"))).await;
    assert!(status < 300, "{told}");
    let gaps = standby.sql(
        &name,
        "SELECT count(*) FROM moonswarm.runs r
         WHERE r.seq <> (SELECT count(*) FROM moonswarm.journal j WHERE j.run = r.num)",
    );
    assert_eq!(gaps.trim(), "0");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_database_of_the_tests_belongs_to_one_directory() {
    if there(Database::fresh()).is_none() {
        return;
    }
    let shell = Shell::new();
    let (one, two) = (Database::of(&shell.path("one")), Database::of(&shell.path("two")));
    assert_ne!(one, two);
    assert_eq!(one, Database::of(&shell.path("one")));
}
