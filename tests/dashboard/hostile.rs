//! What flows, workers and people wrote is text, wherever it is shown.

use serde_json::json;

use crate::{
    person::{Person, daemon},
    support::send,
};

#[tokio::test]
async fn markup_and_controls_are_shown_as_text_on_every_page() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let big = "<script>alert(6)</script>\u{202e}\u{1b}]0;x\u{7}🌙".repeat(24_000);
    let body = json!({ "blueprint": "hostile", "input": { "text": big } });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    let run = view["id"].as_str().unwrap();
    assert_eq!(daemon.ended(run).await["status"], "failed");
    let desk = Person::of_role(&daemon, "admin").await;
    let artifacts = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await.1;
    let artifact = artifacts["items"][0]["id"].as_str().unwrap();
    for path in [
        "/ui".to_owned(),
        "/ui/runs".to_owned(),
        "/ui/blueprints".to_owned(),
        "/ui/blueprints/hostile".to_owned(),
        format!("/ui/runs/{run}"),
        format!("/ui/runs/{run}?tab=data"),
        format!("/ui/runs/{run}?tab=events"),
        format!("/ui/runs/{run}?tab=artifacts"),
        format!("/ui/runs/{run}/steps/2"),
        format!("/ui/runs/{run}/steps/2?whole=1"),
    ] {
        let page = desk.get(&path).await.page();
        for evil in
            ["<script>", "<img src=x", "<svg onload", "<b>thing", "\u{202e}", "\u{1b}", "\u{7}"]
        {
            assert!(!page.contains(evil), "{path}: {evil:?}");
        }
        if !path.contains("whole") {
            assert!(page.len() < 150_000, "{path}: {} bytes", page.len());
        }
    }
    let page = desk.get(&format!("/ui/runs/{run}/steps/2")).await.page();
    assert!(page.contains("&lt;script&gt;alert(6)") && page.contains("more bytes"), "it is shown");
    let file = desk.get(&format!("/ui/artifacts/{artifact}")).await;
    assert_eq!(file.headers["content-type"], "application/octet-stream");
    let disposition = file.headers["content-disposition"].to_str().unwrap();
    assert!(disposition.starts_with("attachment; ") && !disposition.contains('<'), "{disposition}");
}

#[tokio::test]
async fn what_a_person_writes_comes_back_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let evil = "\"><script>alert(1)</script>";
    for path in [
        format!("/ui/runs?blueprint={}", "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"),
        format!("/ui/runs?done={}", "%3Cscript%3E"),
        format!("/ui/blueprints?q={}", "%3Cscript%3E"),
        format!("/ui/login?next={}", "%22%3E%3Cscript%3E"),
        format!("/ui/runs/{}", "%3Cscript%3E"),
        format!("/ui/{}", "%3Cscript%3E"),
    ] {
        let shown = desk.get(&path).await;
        assert!(!shown.html.contains("<script>"), "{path}: {}", shown.html);
    }
    let sent = desk.post("/ui/blueprints/demo/start", &[("raw", evil), ("once", "x")]).await;
    assert!(sent.status == 422 && !sent.html.contains("<script>alert"), "{}", sent.html);
    let sent = desk.post("/ui/theme", &[("theme", evil), ("next", "//evil.example")]).await;
    assert_eq!((sent.status, sent.to.as_str()), (303, "/ui"));
    assert!(sent.headers["set-cookie"].to_str().unwrap().starts_with("theme=system;"));
}

/// Writes a long text wherever a flow may write one, and asks a person with it.
const LOUD: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "loud",
  agents = { ask = { operator = "human", prompt = "{{ text }}", output = { type = "object", properties = {
    answer = { type = "string", title = "عنوان <script>", description = "\u{202e}hint 🌙" } } } } },
  flow = function(ctx, input)
    ctx.state:set("long", input.text)
    ctx:log("info", input.text)
    ctx:artifact("long.md", input.text)
    ctx:run("ask", { text = input.text }, { summary = string.sub(input.text, 1, 100) })
  end,
}
"#;

#[tokio::test]
async fn a_text_of_a_mebibyte_is_cut_on_each_page_that_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let put = daemon.put("/v1/blueprints/loud", &json!({ "source": LOUD }));
    assert_eq!(send(put).await.0, 200);
    let piece = "<script>alert(7)</script> **bold** مرحبا بالعالم 🌙 \u{202e}\u{1b}[2J\n";
    let text: String = piece.chars().cycle().take((1 << 20) * 9 / 12).collect();
    assert!(text.len() > 900_000, "{}", text.len());
    let body = json!({ "blueprint": "loud", "input": { "text": text } });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    let run = view["id"].as_str().unwrap();
    daemon.waits(run, "task").await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let (_, files) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    let file = files["items"][0]["id"].as_str().unwrap();
    let desk = Person::of_role(&daemon, "admin").await;
    let state = desk.get(&format!("/ui/runs/{run}?tab=state")).await.page();
    let (_, value) = state.split_once("href=\"/ui/state/value?").expect("a link to the value");
    let value = value.split('"').next().unwrap().replace("&amp;", "&");
    let mut paths = vec![
        "/ui".to_owned(),
        "/ui/runs".to_owned(),
        "/ui/inbox".to_owned(),
        "/ui/inbox?q=bold+مرحبا".to_owned(),
        format!("/ui/inbox/{task}"),
        format!("/ui/state/value?{value}"),
        format!("/ui/runs/{run}/steps/3"),
        format!("/ui/runs/{run}/steps/3?raw=1"),
        format!("/ui/runs/{run}/fork?step=3"),
        format!("/ui/runs/{run}?tab=artifacts&open={file}"),
        format!("/ui/runs/{run}?tab=source&at=3"),
    ];
    for tab in ["steps", "source", "graph", "data", "events", "log", "state"] {
        paths.push(format!("/ui/runs/{run}?tab={tab}"));
    }
    for path in paths {
        let page = desk.get(&path).await.page();
        for evil in ["<script>", "\u{202e}", "\u{1b}"] {
            assert!(!page.contains(evil), "{path}: {evil:?}");
        }
        assert!(page.len() < 400_000, "{path}: {} bytes", page.len());
    }
    let page = desk.get(&format!("/ui/inbox/{task}")).await.page();
    assert!(page.contains("مرحبا") && page.contains("🌙") && page.contains("dir=\"auto\""));
}
