//! Daemons that are nodes of a cluster over one PostgreSQL database: one drives, the others stand by,
//! forward requests, help it with its runs, and take over when it is killed, stopped, hung or handed over.

mod administered;
#[path = "../sessions/client.rs"]
#[expect(dead_code, reason = "this program talks to sessions a little")]
mod client;
mod clocks;
#[path = "../http/feed.rs"]
mod feed;
mod forwarding;
mod killed;
mod lent;
mod load;
mod network;
mod peers;
mod poison;
#[path = "../faults/shim.rs"]
#[expect(dead_code, reason = "every test program uses its own part of it")]
mod shim;
mod status;
#[path = "../support/mod.rs"]
mod support;
mod upgrade;

use std::path::PathBuf;

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::{
    DEMO, Daemon, eventually, network::Network, postgres::Database, program, send, skip, when,
};
use tempfile::TempDir;

/// A run that waits for a worker of a queue.
const PULL: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "pull",
  agents = { pull = { operator = "queue", queue = "q", timeout = "10m" } },
  flow = function(ctx, input) return ctx:run("pull", { n = 1 }) end,
}
"#;

/// The time without a renewal after which a node is ended: long for a busy machine.
const LEASE: &str = "10s";

/// A database, a key, and a place for the directories of nodes.
struct Cluster {
    database: Database,
    home: TempDir,
}

impl Cluster {
    /// Returns one without nodes, or notes that the test is left out.
    fn fresh() -> Option<Self> {
        let database = Database::fresh().map_err(|why| skip("a cluster over PostgreSQL", &why));
        let it = Self { database: database.ok()?, home: tempfile::tempdir().unwrap() };
        it.make_key("key");
        Some(it)
    }

    /// Returns one with a driver and a standby, or notes that the test is left out.
    async fn of_two() -> Option<(Self, Daemon, Daemon)> {
        let it = Self::fresh()?;
        let (a, b) = (it.node("a"), it.node("b"));
        it.becomes(&["a up", "b standby"]).await;
        Some((it, a, b))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn make_key(&self, name: &str) {
        let made = program().args(["cluster", "key", "--out"]).arg(self.path(name)).output();
        assert!(made.unwrap().status.success());
    }

    fn start(&self, name: &str, key: &str) -> Option<Daemon> {
        self.start_over(&format!("{}?writers=3", self.database.url()), name, key)
    }

    fn start_over(&self, url: &str, name: &str, key: &str) -> Option<Daemon> {
        self.start_with(url, name, key, &[])
    }

    /// Starts a node with more in its environment.
    fn start_with(
        &self,
        url: &str,
        name: &str,
        key: &str,
        more: &[(&str, &str)],
    ) -> Option<Daemon> {
        let key = self.path(key);
        let mut env = vec![
            ("MOONSWARM_STORE", url),
            ("MOONSWARM_CLUSTER_KEY", key.to_str().unwrap()),
            ("MOONSWARM_NODE", name),
            ("MOONSWARM_CLUSTER_LEASE", LEASE),
        ];
        env.extend(more);
        Daemon::launch(&self.path(name), &env)
    }

    fn node(&self, name: &str) -> Daemon {
        self.start(name, "key").unwrap_or_else(|| panic!("{}", self.log(name)))
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name).with_extension("log")).unwrap_or_default()
    }

    /// Returns the name and state of each node that has not ended.
    fn states(&self) -> Vec<String> {
        let rows = self.database.sql(
            "SELECT name || ' ' || state FROM moonswarm.nodes WHERE state <> 'gone' ORDER BY name",
        );
        rows.lines().map(str::to_owned).collect()
    }

    /// Returns the name of the node that has the runs, as soon as one has them.
    async fn driver(&self) -> String {
        eventually("a node drives", async || {
            let states = self.states();
            let driver = states.iter().find_map(|it| it.strip_suffix(" up")).map(str::to_owned);
            driver.ok_or_else(|| states.join(", "))
        })
        .await
    }

    async fn becomes(&self, states: &[&str]) {
        eventually("the nodes change", async || {
            let now = self.states();
            when(now == states, format!("{now:?}"))
        })
        .await;
    }
}

async fn signal(daemon: &Daemon, run: &str) {
    let path = format!("/v1/runs/{run}/signals/go");
    let (status, told) = send(daemon.post(&path, &json!("on"))).await;
    assert!(status < 300, "{told}");
}

async fn answer(daemon: &Daemon, run: &str) {
    daemon.waits(run, "task").await;
    let (status, tasks) = send(daemon.get(&format!("/v1/tasks?run={run}"))).await;
    assert_eq!(status, 200, "{tasks}");
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let (status, told) =
        send(daemon.post(&format!("/v1/tasks/{task}/answer"), &json!({ "output": "yes" }))).await;
    assert!(status < 300, "{told}");
}

async fn lease(daemon: &Daemon) -> String {
    let body = json!({"queue": "q", "wait": "30s", "max": 1});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    leased[0]["handle"].as_str().unwrap().to_owned()
}

/// Returns a port that nobody listens on at the moment.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn send_signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn a_killed_driver_is_replaced_by_the_standby_and_old_handles_are_good() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    assert_eq!(a.token, b.token, "the nodes have one admin token");
    for node in [&a, &b] {
        assert_eq!(send(node.get("/healthz")).await.0, 200);
        assert_eq!(send(node.get("/readyz")).await.0, 200);
    }
    let waiting = b.run_source(DEMO, json!({})).await;
    a.waits(&waiting, "signal").await;
    let pulled = b.run_source(PULL, json!({})).await;
    let handle = lease(&b).await;
    a.kill();
    // A read waits for the next driver; it is sent again as long as there is none.
    let (status, view) = eventually("the standby drives", async || {
        let (status, view) = send(b.get(&format!("/v1/runs/{waiting}"))).await;
        when(status == 200, format!("{status} {view}")).map(|()| (status, view))
    })
    .await;
    assert_eq!((status, &view["waiting_on"][0]["kind"]), (200, &json!("signal")), "{view}");
    cluster.becomes(&["b up"]).await;
    let report = b.with(&handle, Method::POST, "/v1/worker/result").json(&json!({"output": 7}));
    let (status, told) = send(report).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(b.ended(&pulled).await["output"], 7);
    signal(&b, &waiting).await;
    answer(&b, &waiting).await;
    assert_eq!(b.ended(&waiting).await["output"]["seen"], "on");
    // The killed one comes back, and stands by.
    let a = cluster.node("a");
    cluster.becomes(&["a standby", "b up"]).await;
    assert_eq!(a.ended(&pulled).await["output"], 7);
}

#[tokio::test]
async fn a_stopped_driver_hands_over_and_its_requests_are_answered_by_the_next() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (a, b) = (cluster.node("a"), cluster.node("b"));
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    assert_eq!(a.stop(), Some(0), "{}", cluster.log("a"));
    let (status, view) = send(b.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!(status, 200, "{view}");
    assert_eq!(cluster.states(), ["b up"]);
    // Its lease did not have to end: the next one did not declare it dead.
    assert!(!cluster.log("b").contains("no longer renew"), "{}", cluster.log("b"));
    signal(&b, &run).await;
    answer(&b, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
    // All are gone, then one starts over the same directory: at once, with the same token.
    assert_eq!(b.stop(), Some(0), "{}", cluster.log("b"));
    assert_eq!(cluster.states(), [""; 0]);
    let b = cluster.node("b");
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
}

#[tokio::test]
async fn sockets_streams_and_large_bodies_go_through_a_standby() {
    let Some((_cluster, a, b)) = Cluster::of_two().await else { return };
    let run = b.run_source(DEMO, json!({})).await;
    b.waits(&run, "signal").await;
    // A stream of events, which arrive while it is open.
    let stream = b.get(&format!("/v1/runs/{run}/events")).send();
    let mut stream = stream.await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut heard = String::new();
    while !heard.contains("data: ") {
        let chunk = stream.chunk().await.unwrap().expect("the stream stays open");
        heard.push_str(&String::from_utf8_lossy(&chunk));
    }
    signal(&a, &run).await;
    while !heard.contains("\"go\"") {
        let chunk = stream.chunk().await.unwrap().expect("the stream stays open");
        heard.push_str(&String::from_utf8_lossy(&chunk));
    }
    // A WebSocket: a session opened and served through the standby.
    let opened = client::open(&b).await;
    let mut socket = opened.connect(&b).await;
    let team = client::blueprint("return ctx:run(\"writer\", { what = \"x\" })");
    let started = b.run_source(&team, json!({})).await;
    let spawn = socket.until("task/spawn").await["params"].clone();
    assert_eq!(spawn["run"], json!(started), "{spawn}");
    socket.ask("task/result", json!({"task": spawn["task"], "output": 1})).await;
    assert_eq!(b.ended(&started).await["output"], 1);
    // A body that is streamed, because it is too large to be kept.
    let large = "x".repeat(3 << 20);
    let source = format!("{DEMO}-- {large}");
    let (status, view) = send(b.post("/v1/runs", &json!({ "source": source }))).await;
    assert!(matches!(status, 201 | 413 | 422), "{status} {view}");
    let (status, page) = send(b.bare(Method::GET, "/ui")).await;
    assert!(status < 500, "{page}");
}

#[tokio::test]
async fn tools_of_mcp_are_called_through_a_standby() {
    let Some((_cluster, _a, b)) = Cluster::of_two().await else { return };
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "list_runs", "arguments": {}}});
    let accept = "application/json, text/event-stream";
    let (status, answer) = send(b.post("/mcp", &call).header("accept", accept)).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["result"]["structuredContent"]["items"].is_array(), "{answer}");
}

#[tokio::test]
async fn a_hung_driver_is_ended_and_writes_nothing_when_it_wakes_up() {
    let Some((cluster, a, b)) = Cluster::of_two().await else { return };
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    send_signal(&a, Signal::STOP);
    cluster.becomes(&["b up"]).await;
    signal(&b, &run).await;
    answer(&b, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
    let rows = "SELECT count(*) || ' ' || max(lsn) FROM moonswarm.journal";
    let before = cluster.database.sql(rows);
    send_signal(&a, Signal::CONT);
    // It finds that it was ended, and stands by: its answers are those of the other.
    let view = eventually("the former driver stands by", async || {
        let (status, view) = send(a.get(&format!("/v1/runs/{run}"))).await;
        when(status == 200 && cluster.states().len() == 2, format!("{status} {view}"))
            .map(|()| view)
    })
    .await;
    assert_eq!(view["output"]["seen"], "on", "{view}");
    assert_eq!(cluster.states(), ["a standby", "b up"]);
    assert_eq!(cluster.database.sql(rows), before);
}

#[tokio::test]
async fn a_driver_that_is_cut_off_from_the_database_is_replaced() {
    let Some(cluster) = Cluster::fresh() else { return };
    let between = Network::before(cluster.database.port());
    let url = between.through(&cluster.database.tcp_url(), cluster.database.port());
    let a = cluster.start_over(&url, "a", "key").unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let b = cluster.node("b");
    cluster.becomes(&["a up", "b standby"]).await;
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    between.hang(true);
    cluster.becomes(&["b up"]).await;
    signal(&b, &run).await;
    answer(&b, &run).await;
    assert_eq!(b.ended(&run).await["output"]["seen"], "on");
    // It knows that it is cut off, and answers nothing from its memory.
    let (status, told) = send(a.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!((status, &told["code"]), (503, &json!("no_driver")), "{told}");
    assert_eq!(send(a.get("/healthz")).await.0, 200, "the process lives");
    assert_eq!(send(a.get("/readyz")).await.0, 503, "it is not ready");
    between.hang(false);
    cluster.becomes(&["a standby", "b up"]).await;
    let view = eventually("it forwards", async || {
        let (status, view) = send(a.get(&format!("/v1/runs/{run}"))).await;
        when(status == 200, format!("{status} {view}")).map(|()| view)
    })
    .await;
    assert_eq!(view["output"]["seen"], "on", "{view}");
}

#[tokio::test]
async fn a_daemon_alone_becomes_the_first_node_and_its_tokens_stay_good() {
    let Some(cluster) = Cluster::fresh() else { return };
    let url = cluster.database.url();
    let alone = Daemon::launch(&cluster.path("a"), &[("MOONSWARM_STORE", &url)]);
    let alone = alone.unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let token = alone.token.clone();
    let pulled = alone.run_source(PULL, json!({})).await;
    let handle = lease(&alone).await;
    // While it runs, nobody joins it: it does not know the key.
    assert!(cluster.start("b", "key").is_none());
    assert!(cluster.log("b").contains("has it; stop that one first"), "{}", cluster.log("b"));
    assert_eq!(alone.stop(), Some(0));
    // As the release before has left it.
    cluster.database.sql(
        "SET search_path = moonswarm; DROP TABLE keys;
         ALTER TABLE nodes DROP COLUMN boot, DROP COLUMN url, DROP COLUMN peer_url, DROP COLUMN peer_key,
             DROP COLUMN format, DROP COLUMN clock_ms;
         ALTER TABLE cluster DROP COLUMN feature, DROP COLUMN held, DROP COLUMN release;
         UPDATE cluster SET format = 10, oldest = 10",
    );
    let (a, b) = (cluster.node("a"), cluster.node("b"));
    assert_eq!((&a.token, &b.token), (&token, &token));
    let report = b.with(&handle, Method::POST, "/v1/worker/result").json(&json!({"output": 7}));
    let (status, told) = send(report).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(a.ended(&pulled).await["output"], 7);
    let (_, nodes) = send(b.get("/v1/nodes")).await;
    let names = |of: &Value| (of["name"].clone(), of["state"].clone());
    assert_eq!(names(&nodes["items"][0]), (json!("a"), json!("up")), "{nodes}");
    assert_eq!(names(&nodes["items"][1]), (json!("b"), json!("standby")), "{nodes}");
    // The keys that it rotates are those of the cluster, and each directory has the new token.
    let (status, rotated) = send(b.post("/v1/keys/rotate", &json!({}))).await;
    assert_eq!(status, 200, "{rotated}");
    eventually("the standby has the new token", async || {
        let read = |node: &str| std::fs::read(cluster.path(node).join("admin.token")).unwrap();
        when(read("a") == read("b") && read("b") != token.as_bytes(), "the old one")
    })
    .await;
}

#[tokio::test]
async fn whoever_has_another_key_or_none_is_no_node() {
    let Some((cluster, _a, b)) = Cluster::of_two().await else { return };
    cluster.make_key("other-key");
    assert!(cluster.start("c", "other-key").is_none());
    assert!(cluster.log("c").contains("a cluster with another key"), "{}", cluster.log("c"));
    let url = cluster.database.url();
    assert!(Daemon::launch(&cluster.path("d"), &[("MOONSWARM_STORE", &url)]).is_none());
    assert!(cluster.log("d").contains("--cluster-key"), "{}", cluster.log("d"));
    // The secrets in the database are sealed.
    let sealed = cluster.database.sql("SELECT encode(sealed, 'escape') FROM moonswarm.keys");
    assert!(!sealed.contains("PRIVATE KEY") && !sealed.contains(&b.token), "{sealed}");
    assert!(!cluster.path("b").join("signing.key").exists());
    // What only a node may say of a request counts from nobody else.
    let forged = json!({"client": null, "secure": true, "local": true, "site": null, "person": null,
                        "exposed": false, "reached": null});
    for node in [&cluster.path("a"), &cluster.path("b")] {
        let server = std::fs::read_to_string(node.join("server.json")).unwrap();
        let server: Value = serde_json::from_str(&server).unwrap();
        let at = Daemon::of(server["url"].as_str().unwrap(), &b.token);
        let request = at.get("/v1/runs").header("x-moonswarm-arrival", forged.to_string());
        let (status, told) = send(request.header("host", "evil.example")).await;
        assert_eq!((status, &told["code"]), (403, &json!("host_not_allowed")), "{told}");
    }
    // The listener of nodes speaks to nodes only.
    let peer = cluster.database.sql("SELECT peer_url FROM moonswarm.nodes WHERE state = 'up'");
    for scheme in ["http", "https"] {
        let stranger = Daemon::of(&format!("{scheme}://{}", peer.trim()), &b.token);
        assert!(stranger.get("/v1/runs").send().await.is_err());
    }
    // A row that somebody without the key writes is no driver.
    cluster.database.sql(
        "INSERT INTO moonswarm.nodes (name, home, version, state, lease_until, peer_url, peer_key)
         VALUES ('forged', 'x', '9', 'standby', now() + interval '1 hour', '127.0.0.1:1', '\\x00')",
    );
    assert_eq!(send(b.get("/v1/runs")).await.0, 200);
}

#[tokio::test]
async fn two_clusters_on_one_server_do_not_meet() {
    let (Some(one), Some(two)) = (Cluster::fresh(), Cluster::fresh()) else { return };
    let (a, b) = (one.node("a"), two.node("b"));
    one.becomes(&["a up"]).await;
    two.becomes(&["b up"]).await;
    let run = a.run_source(DEMO, json!({})).await;
    a.waits(&run, "signal").await;
    assert_eq!(send(b.with(&a.token, Method::GET, "/v1/runs")).await.0, 401);
    let (_, runs) = send(b.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]));
}
