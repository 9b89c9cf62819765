//! The tab Source of a run: the lines with what the run did there.

use serde_json::json;

use crate::{
    live::Live,
    person::{Person, daemon, mint},
    support::{Daemon, send},
};

async fn put(daemon: &Daemon, name: &str, source: &str) {
    let body = json!({ "source": source });
    let (status, put) = send(daemon.put(&format!("/v1/blueprints/{name}"), &body)).await;
    assert!(status < 300, "{put}");
}

async fn start(daemon: &Daemon, name: &str) -> String {
    let (status, run) =
        send(daemon.post("/v1/runs", &json!({ "blueprint": name, "input": { "text": "x" } })))
            .await;
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

/// The row of a line.
fn row(page: &str, line: u32) -> String {
    let (_, rest) =
        page.split_once(&format!("<tr id=\"L{line}\"")).unwrap_or_else(|| panic!("{line}: {page}"));
    rest.split("</tr>").next().unwrap().to_owned()
}

#[tokio::test]
async fn the_lines_where_a_run_waits_are_lit_and_follow_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let path = format!("/ui/runs/{run}?tab=source");
    let page = desk.get(&path).await.page();
    // Line 1 of the source is empty: the text begins with a line end.
    let (echo, ask, wait) = (row(&page, 22), row(&page, 25), row(&page, 26));
    assert!(echo.contains("hit") && echo.contains("2 steps") && !echo.contains("now"), "{echo}");
    assert!(ask.contains("now") && ask.contains("waits") && ask.contains("/steps/"), "{ask}");
    assert!(!wait.contains("hit") && wait.contains("ctx:wait(&quot;go&quot;)"), "{wait}");

    let mut live = Live::of(&daemon, &desk, &format!("/ui/live/runs/{run}?tab=source")).await;
    live.shows("run-tab", "id=\"L26\"").await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    let answer = json!({ "output": { "ship": true } });
    let (status, done) = send(daemon.post(&format!("/v1/tasks/{task}/answer"), &answer)).await;
    assert!(status < 300, "{done}");
    let html = live.shows("run-tab", "id=\"L26\" class=\"hit now\"").await;
    assert!(!row(&html, 25).contains("now"), "{html}");

    let step = desk.get(&format!("/ui/runs/{run}/steps/1")).await.page();
    assert!(step.contains("tab=source&amp;file=main.lua&amp;cursor=1#L22"), "{step}");
    // Who may not read blueprints sees no source.
    let token = mint(&daemon, "approver", &json!({})).await;
    let boss = Person::with(&daemon, &token).await;
    let page = boss.get(&format!("/ui/runs/{run}")).await.page();
    assert!(!page.contains("tab=source"), "{page}");
    let page = boss.get(&path).await.page();
    assert!(page.contains("does not reach the source") && !page.contains("id=\"L1\""), "{page}");
}

#[tokio::test]
async fn a_failure_is_shown_at_its_line_with_the_calls_that_led_there() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = start(&daemon, "hostile").await;
    daemon.ended(&run).await;
    let page = desk.get(&format!("/ui/runs/{run}?tab=source")).await.page();
    let line = row(&page, 12);
    assert!(line.contains("class=\"fault\""), "{line}");
    assert!(page.contains("bad &lt;b&gt;thing&lt;/b&gt;") && !page.contains("<script>alert"));

    let failing = "local swarm = require('swarm')\nlocal function deep(t)\n  return t.a.b\nend\n\
        return swarm.blueprint { name = 'deep', flow = function()\n  return deep({}) + 1\nend }";
    put(&daemon, "deep", failing).await;
    let run = start(&daemon, "deep").await;
    daemon.ended(&run).await;
    let page = desk.get(&format!("/ui/runs/{run}?tab=source")).await.page();
    assert!(row(&page, 3).contains("class=\"fault\""), "{page}");
    for part in ["#L3\"><code>main.lua:3</code>", "#L6\"><code>main.lua:6</code>", "deep"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn a_large_source_is_shown_in_parts_and_opens_where_the_run_is() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let filler = format!("-- {}\n", "x".repeat(100)).repeat(3_000);
    let long = format!(
        "local swarm = require('swarm')\n{filler}return swarm.blueprint {{ name = 'long', flow = function(ctx)\nctx:wait('go')\nend }}"
    );
    put(&daemon, "long", &long[..]).await;
    let run = start(&daemon, "long").await;
    daemon.waits(&run, "signal").await;
    let path = format!("/ui/runs/{run}?tab=source");
    let page = desk.get(&path).await.page();
    assert!(row(&page, 3_003).contains("now"), "{page}");
    assert!(!page.contains("id=\"L2800\"") && page.contains("id=\"L2801\""));
    let first = desk.get(&format!("{path}&cursor=1")).await.page();
    assert!(first.len() < 150_000 && first.contains("cursor=401"), "{} bytes", first.len());
    assert_eq!(desk.get(&format!("{path}&file=no.lua")).await.status, 404);
    assert_eq!(desk.get(&format!("{path}&cursor=x")).await.status, 400);
}

#[tokio::test]
async fn the_locals_at_a_step_are_shown_above_the_source_with_the_steps_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let admin = Person::of_role(&daemon, "admin").await;
    let source = "local swarm = require('swarm')\nreturn swarm.blueprint { name = 'sums',\n\
        agents = { e = { operator = 'echo' } }, flow = function(ctx)\n  local seen = { '<b>', { deep = 'x' } }\n\
        for i = 1, 3 do\n    local twice = i * 2\n    ctx:run('e', twice)\n  end\n  ctx:wait('go')\nend }";
    put(&daemon, "sums", source).await;
    let run = start(&daemon, "sums").await;
    daemon.waits(&run, "signal").await;
    let at = |step: u32| format!("/ui/runs/{run}?tab=source&at={step}");
    let page = admin.get(&at(2)).await.page();
    for part in [
        "Locals at step 2",
        "at=1\">← step 1",
        "at=3\">step 3 →",
        "<code>twice</code>",
        "<code>4</code>",
        "&lt;b&gt;",
        "moonswarm inspect",
        "#L7\"><code>main.lua:7</code>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(row(&page, 7).contains("class=\"hit moment\""), "{page}");
    assert!(!page.contains("/ui/live/runs/"), "a moment of the past is not looked for again");
    let page = admin.get(&format!("/ui/runs/{run}?tab=source")).await.page();
    assert!(row(&page, 7).contains("at=3\">locals"), "{page}");
    assert!(!page.contains("Locals at step"), "{page}");
    let step = admin.get(&format!("/ui/runs/{run}/steps/2")).await.page();
    assert!(step.contains("tab=source&amp;at=2\">Locals at this step"), "{step}");
    assert_eq!(admin.get(&at(99)).await.status, 404);
    assert_eq!(admin.get(&format!("/ui/runs/{run}?tab=source&at=x")).await.status, 400);
    // An operator has no link, and no look.
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get(&at(2)).await.page();
    assert!(page.contains("needs the verb <code>run.inspect</code>"), "{page}");
    assert!(!page.contains("twice</code>") && !page.contains(">locals<"), "{page}");
}
