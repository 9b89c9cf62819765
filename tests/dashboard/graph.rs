//! The graph of a flow, alone and with the states of a run; and how two versions differ.

use serde_json::json;

use crate::{
    person::{DEMO, Person, daemon, mint},
    support::{Daemon, send},
};

/// The classes of the node with a label, and its link.
fn node(page: &str, label: &str) -> String {
    let (before, _) = page
        .split_once(&format!("{label}</text>"))
        .unwrap_or_else(|| panic!("no node {label}: {page}"));
    let tag = before.rsplit("<a ").next().unwrap();
    tag.split('>').next().unwrap().to_owned()
}

async fn publish(daemon: &Daemon, name: &str, source: &str) -> String {
    let put = daemon.put(&format!("/v1/blueprints/{name}"), &json!({ "source": source }));
    let (status, view) = send(put).await;
    assert!(status < 300, "{view}");
    view["hash"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_is_seen_on_the_graph_of_its_flow() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let tab = format!("/ui/runs/{run}?tab=graph");
    let page = desk.get(&tab).await.page();
    assert!(page.contains("data-live=\"/ui/live/runs/") && page.contains("tab=graph"), "{page}");
    let echo = node(&page, "✓ 2× run echo");
    assert!(
        echo.contains("leaf ok") && echo.contains(&format!("/ui/runs/{run}/steps/2")),
        "{echo}"
    );
    let ask = node(&page, "▶ run ask");
    assert!(ask.contains("leaf busy") && ask.contains("/steps/4"), "{ask}");
    let wait = node(&page, "wait go");
    assert!(wait.contains("leaf never") && wait.contains("tab=source"), "{wait}");
    let round = node(&page, "↻ ✓ 2× for i = 1, input.times or 3");
    assert!(round.contains("around ok"), "{round}");
    for inline in [" style=", "<script>"] {
        assert!(!page.contains(inline), "{inline}");
    }
    assert_eq!(desk.get(&format!("{tab}&node=99")).await.status, 400);

    let narrow = json!({ "scopes": [format!("run:{run}"), "blueprint:other"] });
    let guest = Person::with(&daemon, &mint(&daemon, "observer", &narrow).await).await;
    let page = guest.get(&tab).await.page();
    assert!(page.contains("does not reach the source") && !page.contains("<svg class=\"graph"));
    let approver = Person::of_role(&daemon, "approver").await;
    assert!(!approver.get(&format!("/ui/runs/{run}")).await.page().contains("tab=graph"));
}

#[tokio::test]
async fn the_nodes_of_a_table_on_one_line_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let source = r#"local swarm = require("swarm") local n = swarm.nodes
        return swarm.blueprint { name = "table", agents = { a = { operator = "echo" }, b = { operator = "echo" }, c = { operator = "echo" } },
          flow = n.seq { n.step { id = "x", agent = "a" }, n.branch { if_ = "false", then_ = n.step { agent = "c" } }, n.map { over = { 1, 2, 3 }, body = n.step { agent = "b" } } } }"#;
    let run = daemon.run_source(&source.replace("\n", " "), json!(null)).await;
    daemon.ended(&run).await;
    let desk = Person::of_role(&daemon, "admin").await;
    let page = desk.get(&format!("/ui/runs/{run}?tab=graph")).await.page();
    assert!(node(&page, "✓ x: run a").contains("leaf ok"), "{page}");
    assert!(node(&page, "✓ 3× run b").contains("leaf ok"), "{page}");
    assert!(node(&page, ">run c").contains("leaf never"), "{page}");
    assert!(!page.contains("data-live="), "it has ended");
}

#[tokio::test]
async fn a_failed_call_and_steps_of_other_files_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let files = json!({ "entry": "main.lua", "files": {
        "main.lua": "local swarm = require(\"swarm\")\nlocal lib = require(\"./lib\")\n\
            return swarm.blueprint { name = \"two\", agents = { echo = { operator = \"echo\" },\n\
            bad = { operator = \"lua\", fn = function() error(\"no\") end } }, flow = function(ctx)\n\
            lib(ctx)\nctx:try(\"bad\")\nctx:sleep(1)\nend }",
        "lib.luau": "return function(ctx) ctx:run(\"echo\", 1) end",
    } });
    let (status, put) = send(daemon.put("/v1/blueprints/two", &files)).await;
    assert!(status < 300, "{put}");
    let (_, view) = send(daemon.post("/v1/runs", &json!({ "blueprint": "two" }))).await;
    let run = view["id"].as_str().unwrap();
    daemon.ended(run).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get(&format!("/ui/runs/{run}?tab=graph")).await.page();
    assert!(node(&page, "✕ run bad").contains("leaf bad"), "{page}");
    assert!(node(&page, "✓ sleep").contains("leaf ok"), "{page}");
    assert!(page.contains("1 step comes from calls that are not drawn"), "{page}");
}

#[tokio::test]
async fn a_blueprint_has_its_graph_and_stubs_for_editors() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "observer").await;
    let page = desk.get("/ui/blueprints/demo?tab=graph").await.page();
    let echo = node(&page, ">run echo");
    assert!(echo.contains("/ui/blueprints/demo%40") && echo.contains("#L"), "{echo}");
    let line = echo.split("#L").nth(1).unwrap().split('"').next().unwrap();
    let source = desk.get("/ui/blueprints/demo").await.page();
    let (_, row) = source.split_once(&format!("id=\"L{line}\">")).unwrap();
    assert!(row.split("</span>").next().unwrap().contains("ctx:run(&quot;echo&quot;"), "{row}");
    let stubs = desk.get("/ui/blueprints/demo?tab=stubs").await.page();
    assert!(stubs.contains("---@class moonswarm.Ctx"), "{stubs}");
    assert_eq!(desk.get("/ui/blueprints/demo?tab=other").await.status, 400);
    assert_eq!(desk.get("/ui/blueprints/none?tab=graph").await.status, 404);
}

#[tokio::test]
async fn two_versions_are_compared_on_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "observer").await;
    let one = desk.get("/ui/blueprints/demo?tab=versions").await.page();
    assert!(one.contains("the first") && !one.contains("Compare</button>"), "{one}");
    let changed = DEMO.replace("ctx:wait(\"go\")", "ctx:wait(\"<b>go\")").replace(
        "echo = { operator = \"echo\" },",
        "echo = { operator = \"echo\", retry = { max_attempts = 2 } },",
    );
    let hash = publish(&daemon, "demo", &changed).await;
    let list = desk.get("/ui/blueprints/demo?tab=versions").await.page();
    assert!(list.contains("✓ current") && list.contains("to the one before"), "{list}");
    let page =
        desk.get(&format!("/ui/blueprints/demo?tab=versions&to={}", &hash[..12])).await.page();
    for part in [
        "+2 −2",
        "<code>echo</code>",
        "retry",
        "<span class=\"removed\">-    ctx:wait(&quot;go&quot;)",
        "<span class=\"added\">+    ctx:wait(&quot;&lt;b&gt;go&quot;)",
        "moonswarm blueprints diff demo",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let start = desk.get("/ui/blueprints/demo").await.page();
    assert!(start.contains("What changed in this one"), "{start}");
    for (from, status) in [("ffff", 200), ("%3Cscript%3E", 200)] {
        let shown = desk.get(&format!("/ui/blueprints/demo?tab=versions&from={from}")).await;
        assert_eq!(shown.status, status, "{}", shown.html);
        assert!(shown.html.contains("There is no version") && !shown.html.contains("<script>"));
    }
    let narrow = mint(&daemon, "observer", &json!({ "scopes": ["blueprint:hostile"] })).await;
    let guest = Person::with(&daemon, &narrow).await;
    assert_eq!(guest.get("/ui/blueprints/demo?tab=versions").await.status, 403);
}
