//! The tabs of a run: their filters, previews and pages.

use reqwest::Method;
use serde_json::json;

use crate::{
    person::{Person, daemon},
    support::{Daemon, send},
};

/// Writes logs, files, state, and calls itself.
const WRITER: &str = r##"
local swarm = require("swarm")
return swarm.blueprint {
  name = "writer",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:log("info", "began", { n = 1 })
    ctx:log("error", "lost <b>it</b>")
    ctx:status("half", { progress = 0.5 })
    ctx:artifact("report.md", "# Title\n\n<script>alert(1)</script> **bold** [x](javascript:alert(2))")
    ctx:artifact("data.json", '{"a":[1,2]}')
    ctx:artifact("pic.svg", "<svg onload='alert(5)'/>")
    for i = 1, 130 do ctx.state:set(string.format("key/%03d", i), { n = i }) end
    ctx:run("echo", { big = string.rep("x", 500) })
    if input.deep then ctx:call("writer", { deep = false }) end
    return 1
  end,
}
"##;

async fn written(daemon: &Daemon) -> String {
    let put = daemon.put("/v1/blueprints/writer", &json!({ "source": WRITER }));
    assert_eq!(send(put).await.0, 200);
    let body = json!({ "blueprint": "writer", "input": { "deep": true } });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    let run = view["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    run
}

async fn artifact(daemon: &Daemon, run: &str, name: &str) -> String {
    let (_, list) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    let items = list["items"].as_array().unwrap();
    let found = items.iter().find(|it| it["name"] == name).unwrap();
    found["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn events_and_logs_are_filtered_by_their_url() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let run = written(&daemon).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let tab = async |query: &str| desk.get(&format!("/ui/runs/{run}?tab={query}")).await.page();
    let rows = |page: &str| page.matches("<tr data-key=\"").count();

    let all = tab("events").await;
    assert!(rows(&all) == 80 && all.contains("rel=\"next\"") && all.contains("run.ended"));
    let noted = tab("events&type=log").await;
    assert!(rows(&noted) == 2 && !noted.contains("run.ended"), "{noted}");
    let step = tab("events&step=2").await;
    assert!(rows(&step) >= 1 && !step.contains("run.started"), "{step}");
    assert!(tab("events&type=lo").await.contains("No event matches"));
    assert_eq!(desk.get(&format!("/ui/runs/{run}?tab=events&step=x")).await.status, 400);

    let log = tab("log").await;
    assert!(rows(&log) == 3 && log.contains("lost &lt;b&gt;it"), "{log}");
    let lost = tab("log&level=error").await;
    assert!(rows(&lost) == 1 && lost.contains("lost"), "{lost}");
    assert!(rows(&tab("log&q=BEGAN").await) == 1 && tab("log&q=none").await.contains("No line"));

    let state = tab("state").await;
    assert!(state.contains("key/001") && state.contains("rel=\"next\""), "{state}");
    assert!(!state.contains("key/130"));
    let few = tab("state&prefix=key/13").await;
    assert!(few.contains("key/130") && !few.contains("key/001"), "{few}");
    let children = tab("children").await;
    assert!(rows(&children) == 1 && children.contains("writer"), "{children}");
    assert_eq!(rows(&tab("children&status=completed&blueprint=writer").await), 1);
    for both in ["children&status=failed,completed", "children&status=failed&status=completed"] {
        let page = tab(both).await;
        assert!(rows(&page) == 1 && page.contains("--status failed --status completed"), "{page}");
    }
    for none in ["children&status=failed", "children&blueprint=other"] {
        assert!(tab(none).await.contains("No called run matches"), "{none}");
    }
    let status = desk.get(&format!("/ui/runs/{run}?tab=children&status=odd")).await.status;
    assert_eq!(status, 400);

    let files = tab("artifacts").await;
    assert_eq!(rows(&files), 3, "{files}");
    let named = tab("artifacts&q=REPORT").await;
    assert!(rows(&named) == 1 && named.contains("report.md") && named.contains("Show all"));
    let step = named.split("/steps/").nth(1).and_then(|it| it.split('"').next()).unwrap();
    assert_eq!(rows(&tab(&format!("artifacts&step={step}")).await), 1);
    assert!(tab("artifacts&step=9999").await.contains("No file matches"));
    for last in ["artifacts", "source"] {
        tab(&format!("{last}&cursor={}", usize::MAX)).await;
    }
    assert_eq!(desk.get(&format!("/ui/runs/{run}?tab=artifacts&step=x")).await.status, 400);
}

#[tokio::test]
async fn an_open_run_is_followed_with_all_that_its_page_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    for query in ["tab=data&whole=1", "tab=children&status=failed&status=completed"] {
        let page = desk.get(&format!("/ui/runs/{run}?{query}")).await.page();
        let live = format!("data-live=\"/ui/live/runs/{run}?{}\"", query.replace('&', "&amp;"));
        assert!(page.contains(&live), "{live}: {page}");
    }
}

#[tokio::test]
async fn texts_and_pictures_are_previewed_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let png = b"\x89PNG\r\n\x1a\n and more";
    for (name, bytes) in [
        ("a.png", &png[..]),
        ("b.bin", &b"\0\xff"[..]),
        ("c.svg", b"<svg onload='alert(5)'/>"),
        ("d.md", b"# Title\n\n<script>x</script>\n\n**bold**"),
    ] {
        let path = format!("/v1/runs/{run}/artifacts?name={name}");
        let put = daemon.with(&daemon.token, Method::POST, &path).body(bytes.to_vec());
        let (status, body) = send(put).await;
        assert!(status < 300, "{name}: {body}");
    }
    let open = async |name: &str| {
        let id = artifact(&daemon, &run, name).await;
        (desk.get(&format!("/ui/runs/{run}?tab=artifacts&open={id}")).await.page(), id)
    };
    let (page, id) = open("a.png").await;
    assert!(
        page.contains(&format!("<img class=\"preview\" src=\"/ui/artifacts/{id}/picture\"")),
        "{page}"
    );
    let picture = desk.get(&format!("/ui/artifacts/{id}/picture")).await;
    assert_eq!(
        (picture.status, &picture.headers["content-type"]),
        (200, &"image/png".parse().unwrap())
    );
    assert!(
        picture.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'")
    );
    let (page, id) = open("c.svg").await;
    assert!(page.contains("&lt;svg onload") && !page.contains("<svg onload"), "{page}");
    assert_eq!(desk.get(&format!("/ui/artifacts/{id}/picture")).await.status, 404);
    assert!(open("b.bin").await.0.contains("Download it"));
    let (page, id) = open("d.md").await;
    assert!(page.contains("<h3>Title</h3>") && page.contains("<strong>bold</strong>"), "{page}");
    assert!(page.contains("&lt;script&gt;x") && !page.contains("<script>x"), "{page}");
    let raw = desk.get(&format!("/ui/runs/{run}?tab=artifacts&open={id}&raw=1")).await.page();
    assert!(raw.contains("**bold**") && raw.contains("Show texts as Markdown"), "{raw}");
    let other = Person::of_role(&daemon, "approver").await;
    assert_eq!(other.get(&format!("/ui/runs/{run}?tab=artifacts&open={id}")).await.status, 200);
    assert_eq!(desk.get(&format!("/ui/runs/{run}?tab=artifacts&open=art_x")).await.status, 404);
}

#[tokio::test]
async fn a_blueprint_is_archived_and_restored_with_a_token_that_is_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let boss = Person::with(&daemon, &daemon.token).await;
    let page = boss.get("/ui/blueprints/demo").await.page();
    assert!(page.contains("moonswarm blueprints archive demo"), "{page}");
    let operator = Person::of_role(&daemon, "operator").await;
    assert!(!operator.get("/ui/blueprints/demo").await.page().contains("Archive …"));
    let path = "/ui/blueprints/demo/archive";
    assert_eq!(boss.post(path, &[("token", "nonsense")]).await.status, 403);
    let weak = crate::person::mint(&daemon, "operator", &json!({})).await;
    assert_eq!(boss.post(path, &[("token", &weak)]).await.status, 403);
    let done = boss.post(path, &[("token", &daemon.token)]).await;
    assert!(done.to.starts_with("/ui/blueprints/demo%40"), "{} {}", done.to, done.html);
    let page = boss.get(&done.to).await.page();
    assert!(page.contains("Archived") && page.contains("Restore …"), "{page}");
    assert!(boss.get("/ui/blueprints?archived=1").await.page().contains("demo%40"));
    assert!(!boss.get("/ui/blueprints").await.page().contains("/ui/blueprints/demo"));
    let done = boss.post("/ui/blueprints/demo/restore", &[("token", &daemon.token)]).await;
    assert!(boss.get(&done.to).await.page().contains("The blueprint is restored"), "{}", done.to);
    assert!(boss.get("/ui/blueprints").await.page().contains("/ui/blueprints/demo\""));
}

#[tokio::test]
async fn a_timeline_of_ten_thousand_steps_is_folded_and_small() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let wide = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "wide", agents = { echo = { operator = "echo" } },
          flow = function(ctx)
            ctx:run("echo", 1)
            for round = 1, 10 do
              ctx:map(table.create(500, 1), function(i) ctx:run("echo", i) ctx:run("echo", i) end)
            end
          end }"#;
    let run = daemon.run_source(wide, json!(null)).await;
    daemon.ended(&run).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get(&format!("/ui/runs/{run}")).await.page();
    assert!(page.len() < 150_000, "{} bytes", page.len());
    assert_eq!(page.matches("<tr data-key=\"fold-").count(), 10, "{page}");
    assert!(page.contains("1000 steps") && page.contains("<bdi>map</bdi>"), "{page}");
    assert!(page.contains("class=\"axis\"") && page.contains("data-bends=\"0.0:0 "), "{page}");
    let scope = page.split("scope=").nth(1).unwrap().split('"').next().unwrap();
    let branches = desk.get(&format!("/ui/runs/{run}?tab=steps&scope={scope}")).await.page();
    assert!(branches.contains("map, item 1<") && branches.len() < 150_000, "{}", branches.len());
    let each = desk.get(&format!("/ui/runs/{run}?tab=steps&fold=off")).await.page();
    assert_eq!(each.matches("<tr data-key=\"").count(), 200);
    assert!(each.len() < 150_000, "{} bytes", each.len());
    for path in [
        "?tab=source",
        "?tab=graph",
        "?tab=data",
        "?tab=events",
        "?tab=log",
        "?tab=state",
        "/fork?step=9000",
        "/steps/9000",
        "?tab=steps&fold=off&cursor=9900",
    ] {
        let page = desk.get(&format!("/ui/runs/{run}{path}")).await.page();
        assert!(page.len() < 150_000, "{path}: {} bytes", page.len());
    }
    let graph = desk.get(&format!("/ui/runs/{run}?tab=graph")).await.page();
    assert!(graph.contains(">✓ 10000× run echo</text>"), "{graph}");
}
