//! A network between the nodes that cuts, hangs and delays: what a client of a standby gets is one of the
//! documented answers, and what it was told is so.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{
    Cluster, free_port,
    support::{DEMO, Daemon, eventually, network::Network, send, when},
};

/// A run that ends at once, and has its input as its output.
const ECHO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "echo", flow = function(ctx, input) return input end }
"#;

/// A driver `a`, which its peers reach through a network, and a standby `b`.
async fn apart(cluster: &Cluster) -> (Network, Daemon, Daemon) {
    let listens = free_port();
    let between = Network::before(listens);
    let (at, through) = (format!("127.0.0.1:{listens}"), format!("127.0.0.1:{}", between.port()));
    let more = [("MOONSWARM_PEER_LISTEN", &*at), ("MOONSWARM_PEER_ADDRESS", &*through)];
    let a = cluster.start_with(&cluster.database.url(), "a", "key", &more);
    let a = a.unwrap_or_else(|| panic!("{}", cluster.log("a")));
    let b = cluster.node("b");
    cluster.becomes(&["a up", "b standby"]).await;
    (between, a, b)
}

fn start(node: &Daemon, mark: &str) -> RequestBuilder {
    node.post("/v1/runs", &json!({ "source": ECHO, "input": { "mark": mark } }))
}

/// Returns the status, and the body if it arrived whole.
async fn tried(request: RequestBuilder) -> Option<(u16, Value)> {
    let answer = request.send().await.ok()?;
    let status = answer.status().as_u16();
    let body = answer.bytes().await.ok()?;
    Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// Returns the marks of the runs that were started, each as often as there are runs with it.
async fn started(node: &Daemon) -> Vec<String> {
    let (status, page) = send(node.get("/v1/runs?limit=100")).await;
    assert_eq!(status, 200, "{page}");
    assert!(page["items"].as_array().unwrap().len() < 100, "all are on one page");
    let mut marks = Vec::new();
    for run in page["items"].as_array().unwrap() {
        if run["blueprint"].to_string().contains("echo") {
            let view = node.ended(run["id"].as_str().unwrap()).await;
            marks.push(view["output"]["mark"].as_str().unwrap().to_owned());
        }
    }
    marks
}

fn count(marks: &[String], mark: &str) -> usize {
    marks.iter().filter(|it| *it == mark).count()
}

#[tokio::test]
async fn a_connection_between_nodes_that_is_cut_anywhere_loses_and_doubles_nothing() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (between, a, b) = apart(&cluster).await;
    let run = b.run_source(DEMO, json!({})).await;
    b.waits(&run, "signal").await;
    let mut unknown = Vec::new();
    let mut told = Vec::new();
    // Within a request over a connection that is there already, its answer, and the handshake of the next.
    for bytes in [0, 1, 40, 200, 420, 700, 1_000, 1_400, 1_900, 2_500] {
        for of_answers in [false, true] {
            let cut = || match of_answers {
                true => between.cut_answers_after(bytes),
                false => between.cut_requests_after(bytes),
            };
            let at = format!("{bytes}-{of_answers}");
            cut();
            let path = format!("/v1/runs/{run}");
            if let Some((status, view)) = tried(b.get(&path)).await {
                assert_eq!((status, &view["id"]), (200, &json!(run)), "{at}: {view}");
            }
            cut();
            let keyed = format!("keyed-{at}");
            let ask = || start(&b, &keyed).header("idempotency-key", keyed.clone());
            if let Some((status, view)) = tried(ask()).await {
                assert!(status < 300, "{at}: {view}");
            }
            // Whatever came back: the same request again has the same run.
            let (status, view) = send(ask()).await;
            assert!(status < 300, "{at}: {view}");
            told.push(keyed);
            cut();
            let plain = format!("plain-{at}");
            match tried(start(&b, &plain)).await {
                Some((200..300, _)) => told.push(plain),
                Some((502, view)) => {
                    assert_eq!(view["code"], "unknown_outcome", "{at}: {view}");
                    unknown.push(plain);
                }
                // The head of its answer arrived, and the rest did not.
                None => unknown.push(plain),
                Some((status, view)) => panic!("{at}: {status} {view}"),
            }
        }
    }
    assert!(between.cuts() >= 20, "{} cuts", between.cuts());
    assert!(!unknown.is_empty(), "no cut was within a request that is not repeated");
    let marks = started(&a).await;
    for mark in &told {
        assert_eq!(count(&marks, mark), 1, "{mark}");
    }
    for mark in &unknown {
        assert!(count(&marks, mark) <= 1, "{mark}");
    }
    crate::signal(&b, &run).await;
    assert_eq!(cluster.states(), ["a up", "b standby"]);
}

/// The route of state honours no key: what may have been done is not done again.
#[tokio::test]
async fn a_key_repeats_nothing_where_it_is_not_honoured() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (between, a, b) = apart(&cluster).await;
    let (mut told, mut unknown) = (0, 0);
    for bytes in [0, 1, 40, 200] {
        let add = b.put("/v1/state/global/sum", &json!({ "value": 1, "reduce": "sum" }));
        let add = add.header("idempotency-key", format!("add-{bytes}"));
        between.cut_answers_after(bytes);
        match tried(add).await {
            Some((200, _)) => told += 1,
            Some((502, view)) => {
                assert_eq!(view["code"], "unknown_outcome", "{bytes}: {view}");
                unknown += 1;
            }
            None => unknown += 1,
            Some((status, view)) => panic!("{bytes}: {status} {view}"),
        }
    }
    assert!(unknown > 0, "no answer was cut");
    let (status, sum) = send(a.get("/v1/state/global/sum")).await;
    assert_eq!(status, 200, "{sum}");
    let sum = sum["value"].as_u64().unwrap();
    assert!((told..=told + unknown).contains(&sum), "{sum}: {told} told, {unknown} unknown");
}

#[tokio::test]
async fn a_network_between_nodes_that_hangs_or_is_slow_is_told_apart() {
    let Some(cluster) = Cluster::fresh() else { return };
    let (between, a, b) = apart(&cluster).await;
    let run = b.run_source(DEMO, json!({})).await;
    b.waits(&run, "signal").await;
    // What a standby says of its readiness is what the driver says.
    let (status, told) = send(b.get("/readyz")).await;
    assert!(status == 200 && told["version"].is_string(), "{told}");
    // A slow one only takes longer.
    between.delay(Duration::from_millis(100));
    let (status, view) = send(start(&b, "slow")).await;
    assert!(status < 300, "{view}");
    between.delay(Duration::ZERO);
    // A poll that waits for longer than the looks whether its node can be reached is left alone.
    let poll = json!({"queue": "none", "wait": "10s", "max": 1});
    let (status, leased) = send(b.post("/v1/worker/lease", &poll)).await;
    assert_eq!(status, 204, "{leased}");
    let stream = b.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    assert_eq!(stream.status(), 200);

    between.hang(true);
    let (get, keyed, plain, ready, streamed) = tokio::join!(
        send(b.get(&format!("/v1/runs/{run}"))),
        send(start(&b, "keyed").header("idempotency-key", "one")),
        send(start(&b, "plain")),
        send(b.get("/readyz")),
        stream.bytes(),
    );
    assert_eq!((get.0, &get.1["code"]), (503, &json!("no_driver")), "{get:?}");
    // One that went out on a connection that was there before, or none at all.
    let answers = [(502, json!("unknown_outcome")), (503, json!("no_driver"))];
    assert!(answers.contains(&(keyed.0, keyed.1["code"].clone())), "{keyed:?}");
    assert!(answers.contains(&(plain.0, plain.1["code"].clone())), "{plain:?}");
    assert_eq!((ready.0, &ready.1["code"]), (503, &json!("not_ready")), "{ready:?}");
    assert!(streamed.is_err(), "a stream that brings nothing more ends");
    assert_eq!(send(a.get("/readyz")).await.0, 200, "the driver is undisturbed");
    assert_eq!(cluster.states(), ["a up", "b standby"]);

    between.hang(false);
    let (status, view) = send(start(&b, "keyed").header("idempotency-key", "one")).await;
    assert!(status < 300, "{view}");
    eventually("the standby is ready again", async || {
        let (status, told) = send(b.get("/readyz")).await;
        when(status == 200, told)
    })
    .await;
    let marks = started(&a).await;
    assert_eq!((count(&marks, "slow"), count(&marks, "keyed")), (1, 1), "{marks:?}");
    assert!(count(&marks, "plain") <= 1, "{marks:?}");
    let (status, told) = send(b.with(&b.token, Method::GET, "/v1/whoami")).await;
    assert_eq!(status, 200, "{told}");
}
