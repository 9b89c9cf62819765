//! Blueprints that are archived, restored and deleted; their versions, graphs and differences.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

/// A flow that waits until it gets the signal `go`.
const SOURCE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "nightly", agents = { e = { operator = "echo" } },
  on = { { schedule = "0 * * * *" }, { signal = "now" } },
  flow = function(ctx, input) return ctx:wait("go") end,
}"#;

const CALLER: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "caller", flow = function(ctx) return ctx:call("nightly", {}) end,
}"#;

async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

async fn names(daemon: &Daemon, path: &str) -> Vec<String> {
    let list = ok(daemon.get(path), 200).await;
    let items = list["items"].as_array().unwrap().iter();
    items.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_archived_blueprint_starts_nothing_keeps_its_history_and_can_be_restored() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let body = json!({ "source": SOURCE });
    let stored = ok(daemon.put("/v1/blueprints/nightly", &body), 200).await;
    let caller = json!({ "source": CALLER });
    ok(daemon.put("/v1/blueprints/caller", &caller), 200).await;
    let start = || daemon.post("/v1/runs", &json!({ "blueprint": "nightly" }));
    let run = ok(start(), 201).await["id"].as_str().unwrap().to_owned();

    let archive = || daemon.post("/v1/blueprints/nightly/archive", &Value::Null);
    let archived = ok(archive(), 200).await;
    assert!(archived["archived_at"].is_string(), "{archived}");
    assert_eq!(archived["hash"], stored["hash"]);
    assert!(archived["on"][0].get("next_at").is_none(), "nothing is due: {archived}");
    assert_eq!(ok(archive(), 200).await, archived, "a repetition changes nothing");
    assert_eq!(names(&daemon, "/v1/blueprints").await, ["caller"]);
    assert_eq!(names(&daemon, "/v1/blueprints?archived=true").await, ["nightly"]);
    let conflict = (409, "blueprint_archived".to_owned());
    assert_eq!(refusal(start()).await, conflict);
    let version = format!("nightly@{}", stored["hash"].as_str().unwrap());
    for request in [
        daemon.post("/v1/runs", &json!({ "blueprint": version })),
        daemon.post("/v1/blueprints/nightly/signals/now", &Value::Null),
        daemon.put("/v1/blueprints/nightly", &body),
    ] {
        assert_eq!(refusal(request).await, conflict);
    }
    let called = ok(daemon.post("/v1/runs", &json!({ "blueprint": "caller", "wait": "30s" })), 201);
    let called = called.await;
    assert!(called["error"]["message"].as_str().unwrap().contains("is archived"), "{called}");

    // Its history stays, and its runs go on, also after a restart.
    daemon.stop();
    let daemon = Daemon::start(&shell.path("data"));
    let start = || daemon.post("/v1/runs", &json!({ "blueprint": "nightly" }));
    assert_eq!(refusal(start()).await, conflict);
    ok(daemon.get("/v1/blueprints/nightly"), 200).await;
    let source = format!("/v1/blueprints/nightly/{}/source", stored["hash"].as_str().unwrap());
    ok(daemon.get(&source), 200).await;
    ok(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(7)), 204).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);

    let restore = || daemon.post("/v1/blueprints/nightly/restore", &Value::Null);
    let restored = ok(restore(), 200).await;
    assert_eq!((&restored["hash"], restored.get("archived_at")), (&stored["hash"], None));
    assert!(restored["on"][0]["next_at"].is_string(), "{restored}");
    ok(restore(), 200).await;
    ok(start(), 201).await;
    assert_eq!(names(&daemon, "/v1/blueprints").await, ["caller", "nightly"]);
}

#[tokio::test]
async fn only_an_archived_blueprint_that_no_run_has_is_deleted() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.put("/v1/blueprints/nightly", &json!({ "source": SOURCE })), 200).await;
    let delete = || daemon.delete("/v1/blueprints/nightly");
    let in_use = (409, "in_use".to_owned());
    assert_eq!(refusal(delete()).await, in_use, "it is not archived");
    let start = || daemon.post("/v1/runs", &json!({ "blueprint": "nightly" }));
    let run = ok(start(), 201).await["id"].as_str().unwrap().to_owned();
    ok(daemon.post("/v1/blueprints/nightly/archive", &Value::Null), 200).await;
    assert_eq!(refusal(delete()).await, in_use, "a run has it");
    ok(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({})), 200).await;
    daemon.ended(&run).await;
    assert_eq!(refusal(delete()).await, in_use, "the history of a run needs it");
    ok(daemon.delete(&format!("/v1/runs/{run}")), 204).await;
    ok(delete(), 204).await;
    let gone = (404, "not_found".to_owned());
    assert_eq!(refusal(delete()).await, gone);
    assert_eq!(refusal(start()).await, gone);
    for path in ["archive", "restore"] {
        let request = daemon.post(&format!("/v1/blueprints/nightly/{path}"), &Value::Null);
        assert_eq!(refusal(request).await, gone, "{path}");
    }
    // Another one may have the name.
    ok(daemon.put("/v1/blueprints/nightly", &json!({ "source": SOURCE })), 200).await;
    ok(start(), 201).await;
}

#[tokio::test]
async fn a_blueprint_is_archived_only_with_the_verb_and_within_the_scope() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.put("/v1/blueprints/nightly", &json!({ "source": SOURCE })), 200).await;
    let mint = async |body: Value| {
        let minted = ok(daemon.post("/v1/tokens", &body), 201).await;
        minted["token"].as_str().unwrap().to_owned()
    };
    let observer = mint(json!({ "role": "observer", "ttl": "1h" })).await;
    let other = mint(json!({ "role": "admin", "scopes": ["blueprint:other"], "ttl": "1h" })).await;
    for (method, path) in [
        (Method::POST, "/v1/blueprints/nightly/archive"),
        (Method::POST, "/v1/blueprints/nightly/restore"),
        (Method::DELETE, "/v1/blueprints/nightly"),
    ] {
        let request = daemon.with(&observer, method.clone(), path);
        assert_eq!(refusal(request).await, (403, "forbidden_verb".to_owned()), "{path}");
        let request = daemon.with(&other, method, path);
        assert_eq!(refusal(request).await, (403, "forbidden_scope".to_owned()), "{path}");
    }
}

const TABLE: &str = r#"local swarm = require("swarm")
local n = swarm.nodes
return swarm.blueprint { name = "tabular",
  agents = { e = { operator = "echo" } },
  flow = n.seq {
    n.step { agent = "e" },
    n.branch { if_ = "input.ask",
      then_ = n.wait { signal = "go" } },
  },
}"#;

#[tokio::test]
async fn versions_are_listed_drawn_and_compared() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let put = async |source: &str| {
        let put = daemon.put("/v1/blueprints/tabular", &json!({ "source": source }));
        ok(put, 200).await["hash"].as_str().unwrap().to_owned()
    };
    let first = put(TABLE).await;
    let second = TABLE.replace("operator = \"echo\"", "operator = \"echo\", timeout = \"1m\"");
    let second = put(&second.replace("signal = \"go\"", "signal = \"now\"")).await;
    let path = "/v1/blueprints/tabular";
    let versions = ok(daemon.get(&format!("{path}/versions?limit=1")), 200).await;
    let newest = &versions["items"][0];
    assert_eq!((&newest["hash"], &newest["current"]), (&json!(second), &json!(true)), "{versions}");
    let cursor = versions["next_cursor"].as_str().unwrap();
    let older = ok(daemon.get(&format!("{path}/versions?cursor={cursor}")), 200).await;
    assert_eq!((&older["items"][0]["hash"], &older["next_cursor"]), (&json!(first), &Value::Null));
    let wrong = daemon.get(&format!("{path}/versions?cursor=x"));
    assert_eq!(refusal(wrong).await, (400, "bad_request".to_owned()));

    let graph = ok(daemon.get(&format!("{path}/graph")), 200).await;
    let nodes: Vec<_> = graph["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| json!([it["parent"], it["shape"], it["label"], it["line"]]))
        .collect();
    let expected = [
        json!([null, "seq", "tabular", null]),
        json!([0, "seq", "seq", 5]),
        json!([1, "leaf", "run e", 6]),
        json!([1, "choice", "if input.ask", 7]),
        json!([3, "leaf", "wait for now", 8]),
    ];
    assert_eq!(nodes, expected, "{graph}");
    assert_eq!((&graph["exact"], &graph["nodes"][4]["edge"]), (&json!(true), &json!("then")));

    let diff = ok(daemon.get(&format!("{path}/diff")), 200).await;
    assert_eq!((&diff["from"], &diff["to"]), (&json!(first), &json!(second)), "{diff}");
    assert_eq!(
        diff["agents"],
        json!([{ "name": "e", "change": "changed", "parts": ["timeout_ms"] }])
    );
    assert_eq!(diff["parts"], json!(["flow"]));
    let file = &diff["files"][0];
    assert_eq!((&file["added"], &file["removed"]), (&json!(2), &json!(2)));
    assert!(
        file["unified"]
            .as_str()
            .unwrap()
            .contains("\n-      then_ = n.wait { signal = \"go\" } },\n+")
    );
    let back = format!("{path}/diff?from={}&to={}", &second[..12], &first[..12]);
    assert_eq!(ok(daemon.get(&back), 200).await["to"], first);
    for path in
        ["/v1/blueprints/none/graph", "/v1/blueprints/none/versions", &format!("{path}/diff?to=00")]
    {
        assert_eq!(refusal(daemon.get(path)).await, (404, "not_found".to_owned()), "{path}");
    }
    let before_the_first = format!("{path}/diff?to={first}");
    assert_eq!(refusal(daemon.get(&before_the_first)).await, (404, "not_found".to_owned()));
    let body = json!({ "role": "observer", "scopes": ["blueprint:other"], "ttl": "1h" });
    let other = ok(daemon.post("/v1/tokens", &body), 201).await;
    for part in ["versions", "graph", "diff"] {
        let asked =
            daemon.with(other["token"].as_str().unwrap(), Method::GET, &format!("{path}/{part}"));
        assert_eq!(refusal(asked).await, (403, "forbidden_scope".to_owned()), "{part}");
    }
}

#[tokio::test]
async fn a_blueprint_has_its_statistics_and_its_steps_the_lines_of_their_nodes() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.put("/v1/blueprints/tabular", &json!({ "source": TABLE })), 200).await;
    let view = ok(daemon.get("/v1/blueprints/tabular"), 200).await;
    assert!(view.get("stats").is_none() && view.get("problem").is_none(), "{view}");
    let body = json!({ "blueprint": "tabular", "input": { "ask": true } });
    let run = ok(daemon.post("/v1/runs", &body), 201).await["id"].as_str().unwrap().to_owned();
    daemon.waits(&run, "signal").await;
    let steps = ok(daemon.get(&format!("/v1/runs/{run}/steps")), 200).await;
    let lines: Vec<_> = steps["items"].as_array().unwrap().iter().map(|it| &it["line"]).collect();
    assert_eq!(lines, ["main.lua:6", "main.lua:8"], "{steps}");
    ok(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1)), 204).await;
    daemon.ended(&run).await;
    let view = ok(daemon.get("/v1/blueprints/tabular"), 200).await;
    assert_eq!(
        (&view["stats"]["count"], &view["stats"]["failed"]),
        (&json!(1), &json!(0)),
        "{view}"
    );
    let body = json!({ "role": "observer", "scopes": ["blueprint:tabular"], "ttl": "1h" });
    let narrow = ok(daemon.post("/v1/tokens", &body), 201).await;
    let narrow = narrow["token"].as_str().unwrap();
    let view = ok(daemon.with(narrow, Method::GET, "/v1/blueprints/tabular"), 200).await;
    assert!(view.get("stats").is_none(), "it may not read every run: {view}");
}

#[tokio::test]
async fn the_list_of_tools_has_only_blueprints_that_are_tools() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for (name, key) in [("plain", ""), ("handy", "mcp = true,")] {
        let source = format!(
            "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"{name}\", {key}\n\
             description = \"Does it.\", flow = function(ctx, input) return input end }}"
        );
        let path = format!("/v1/blueprints/{name}");
        ok(daemon.put(&path, &json!({ "source": source })), 200).await;
    }
    assert_eq!(names(&daemon, "/v1/blueprints").await, ["handy", "plain"]);
    assert_eq!(names(&daemon, "/v1/blueprints?tools=true").await, ["handy"]);
    assert_eq!(names(&daemon, "/v1/blueprints?archived=true&tools=true").await, [""; 0]);
    let handy = ok(daemon.get("/v1/blueprints?tools=true"), 200).await;
    assert_eq!(handy["items"][0]["tool"]["name"], "handy", "{handy}");
}
