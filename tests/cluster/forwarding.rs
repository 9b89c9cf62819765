//! Requests through a standby have the answers that they have at the driver.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    Cluster,
    support::{Daemon, refusal, send},
};

/// Tasks for workers that pull many at a time.
const MANY: &str = r#"
local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "many",
  agents = { work = { operator = "queue", queue = "many", output = s.object { ok = s.boolean } } },
  flow = function(ctx, input)
    return ctx:map({ 1, 2, 3, 4 }, function(n) return ctx:run("work", { n = n }).ok end)
  end,
}
"#;

async fn leased(node: &Daemon, tasks: usize) -> Vec<Value> {
    let mut leased = Vec::new();
    while leased.len() < tasks {
        let body = json!({ "queue": "many", "wait": "30s", "max": 100 });
        let (status, more) = send(node.post("/v1/worker/lease", &body)).await;
        assert_eq!(status, 200, "{more}");
        leased.extend(more.as_array().unwrap().iter().map(|it| it["handle"].clone()));
    }
    leased
}

/// Returns the status of each item, with the code of its refusal.
async fn verdicts(node: &Daemon, path: &str, body: &Value) -> Vec<(u64, Option<String>)> {
    let (status, answer) = send(node.post(path, body)).await;
    assert_eq!(status, 200, "{answer}");
    let code = |item: &Value| item["problem"]["code"].as_str().map(str::to_owned);
    let verdict = |item: &Value| (item["status"].as_u64().unwrap(), code(item));
    answer["items"].as_array().unwrap().iter().map(verdict).collect()
}

#[tokio::test]
async fn forwarded_batches_of_results_and_leases_have_a_verdict_for_each() {
    let Some((_cluster, a, b)) = Cluster::of_two().await else { return };
    let run = b.run_source(MANY, json!({})).await;
    let handles = leased(&b, 4).await;
    let refused = |status, code: &str| (status, Some(code.to_owned()));
    let kept = json!({ "handles": [handles[0], "wh_nobody", handles[1]] });
    let expected = [(200, None), refused(401, "unauthenticated"), (200, None)];
    assert_eq!(verdicts(&b, "/v1/worker/heartbeats", &kept).await, expected);

    let good =
        |nth: usize| json!({ "handle": handles[nth], "result": { "output": { "ok": true } } });
    let bad = json!({ "handle": handles[1], "result": { "output": { "ok": "yes" } } });
    let forged = json!({ "handle": "wh_nobody", "result": { "output": 1 } });
    // More than is kept for another attempt: it is passed on as it arrives.
    let padding = json!({ "handle": "x".repeat(80 << 10), "result": { "output": 1 } });
    let results = json!({ "results": [good(0), bad, 7, forged, padding, good(2)] });
    let expected = [
        (200, None),
        refused(422, "invalid_result"),
        refused(422, "invalid_body"),
        refused(401, "unauthenticated"),
        refused(401, "unauthenticated"),
        (200, None),
    ];
    assert_eq!(verdicts(&b, "/v1/worker/results", &results).await, expected);
    // What was accepted through the standby was accepted by the driver, and the rest is still open.
    let rest = json!({ "results": [good(0), good(1), good(3)] });
    let (status, answer) = send(a.post("/v1/worker/results", &rest)).await;
    assert_eq!((status, &answer["items"][0]["repeated"]), (200, &json!(true)), "{answer}");
    assert_eq!(answer["items"][1]["repeated"], false, "{answer}");
    assert_eq!(b.ended(&run).await["output"], json!([true, true, true, true]));
}

#[tokio::test]
async fn nobody_is_a_person_or_a_node_by_a_header() {
    let Some(cluster) = Cluster::fresh() else { return };
    let config = cluster.path("moonswarm.toml");
    let people = "[people]\nheader = \"Remote-User\"\n[[people.roles]]\neverybody = true\nrole = \"admin\"\n";
    std::fs::write(&config, people).unwrap();
    let more = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let node = |name: &str| {
        let node = cluster.start_with(&cluster.database.url(), name, "key", &more);
        node.unwrap_or_else(|| panic!("{}", cluster.log(name)))
    };
    let (a, b) = (node("a"), node("b"));
    cluster.becomes(&["a up", "b standby"]).await;
    let person = json!({ "name": "ada", "groups": [] });
    let arrival = json!({ "client": "127.0.0.1", "secure": true, "local": true, "site": null,
                          "person": person, "exposed": false, "reached": null });
    for node in [&a, &b] {
        let asked = || node.bare(Method::GET, "/v1/whoami").header("remote-user", "ada");
        let by_node = asked().header("x-moonswarm-arrival", arrival.to_string());
        let by_proxy = asked().header("x-forwarded-for", "127.0.0.1").header("x-real-ip", "::1");
        for request in [asked(), by_node, by_proxy] {
            assert_eq!(refusal(request).await, (401, "unauthenticated".to_owned()));
        }
        // Neither does a header of nodes name the host.
        let evil = node.get("/v1/whoami").header("host", "evil.example");
        let evil = evil.header("x-moonswarm-arrival", arrival.to_string());
        assert_eq!(refusal(evil).await, (403, "host_not_allowed".to_owned()));
    }
}

#[tokio::test]
async fn a_standby_refuses_what_the_driver_refuses_and_nothing_else() {
    let Some((_cluster, a, b)) = Cluster::of_two().await else { return };
    for node in [&a, &b] {
        let mut request = node.get("/v1/whoami");
        // The client adds the host, and what it accepts.
        for nth in 0..61 {
            request = request.header(format!("x-{nth}"), "y");
        }
        let (status, told) = send(request).await;
        assert_eq!(status, 200, "{told}");
    }
    // What nodes ask each other is not for clients.
    let answers = async |node: &Daemon| {
        let answer = node.bare(Method::GET, "/peer/database").send().await.unwrap();
        let driver = answer.headers().contains_key("x-moonswarm-not-driver");
        (answer.status().as_u16(), driver, answer.text().await.unwrap())
    };
    let (of_driver, of_standby) = (answers(&a).await, answers(&b).await);
    assert_eq!((of_driver.0, of_driver.1), (401, false), "{}", of_driver.2);
    assert_eq!(of_standby, of_driver);
}
