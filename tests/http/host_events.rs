//! The feed of the whole host, and pages of a run's past.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Daemon, PATIENCE, Shell, refusal, send};

const WORK: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "work",
  agents = { ask = { operator = "human", prompt = "Ship?" }, e = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:run("e", { secret = input.secret })
    if input.ask then ctx:run("ask", {}) end
    ctx:wait("go")
    return input.secret
  end,
}"#;

async fn ok(request: reqwest::RequestBuilder) -> Value {
    let (status, body) = send(request).await;
    assert!(status < 300, "{status} {body}");
    body
}

/// A stream of events.
struct Feed {
    answer: Response,
    buffer: String,
}

impl Feed {
    async fn of(daemon: &Daemon, query: &str) -> Self {
        let answer = daemon.get(&format!("/v1/events?{query}")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        Self { answer, buffer: String::new() }
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.buffer = rest;
                let line = |name: &str| event.lines().find_map(|it| it.strip_prefix(name));
                let Some(data) = line("data: ") else { continue };
                let data: Value = serde_json::from_str(data).unwrap();
                assert_eq!(line("id: "), data["cursor"].as_str(), "{event}");
                return data;
            }
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("an event comes");
            let chunk = chunk.unwrap().expect("the stream goes on");
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Reads until an event of a type of a run.
    async fn until(&mut self, run: &str, kind: &str) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().await;
            let is_last = event["run"] == run && event["type"] == kind;
            seen.push(event);
            if is_last {
                return seen;
            }
        }
    }
}

fn kinds<'a>(events: &'a [Value], run: &str) -> Vec<&'a str> {
    let own = events.iter().filter(|it| it["run"] == run);
    own.map(|it| it["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_feed_has_every_run_in_order_and_goes_on_where_it_was_after_a_crash() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let mut live = Feed::of(&daemon, "types=run,task").await;
    let first = daemon.run_source(WORK, json!({ "ask": true, "secret": "hidden" })).await;
    daemon.waits(&first, "task").await;
    let second = daemon.run_source(WORK, json!({ "secret": "hidden" })).await;
    daemon.waits(&second, "signal").await;
    let seen = live.until(&second, "run.waiting").await;
    assert_eq!(kinds(&seen, &first), ["run.started", "task.opened"], "{seen:?}");
    assert_eq!(kinds(&seen, &second), ["run.started", "run.waiting"], "{seen:?}");
    assert!(!format!("{seen:?}").contains("hidden"), "no input is in the feed: {seen:?}");
    let opened = seen.iter().find(|it| it["type"] == "task.opened").unwrap();
    assert_eq!((&opened["data"]["agent"], &opened["blueprint"]), (&json!("ask"), &json!("work")));
    let cursor = seen.last().unwrap()["cursor"].as_str().unwrap().to_owned();
    let task = opened["data"]["task"].as_str().unwrap().to_owned();
    daemon.kill();

    let daemon = Daemon::start(&data);
    ok(daemon.post(&format!("/v1/tasks/{task}/answer"), &json!({ "output": "yes" }))).await;
    for run in [&first, &second] {
        daemon.waits(run, "signal").await;
        ok(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
        daemon.ended(run).await;
    }
    // By the parameter, and as a browser does it.
    let mut again = Feed::of(&daemon, &format!("types=run,task&since={cursor}")).await;
    let after = again.until(&second, "run.ended").await;
    let of_first = kinds(&after, &first);
    assert_eq!(of_first.last(), Some(&"run.ended"), "{after:?}");
    assert!(of_first.contains(&"task.completed"), "the task began before the cursor: {of_first:?}");
    assert_eq!(kinds(&after, &second), ["run.ended"]);
    let resumed = daemon.get("/v1/events?types=run.ended").header("last-event-id", &cursor);
    let mut resumed = Feed { answer: resumed.send().await.unwrap(), buffer: String::new() };
    assert_eq!(resumed.next().await["run"], first);
    let mut all = Feed::of(&daemon, "since=first&types=run.started,run.ended&blueprint=work").await;
    let all = all.until(&second, "run.ended").await;
    for run in [&first, &second] {
        assert_eq!(kinds(&all, run), ["run.started", "run.ended"]);
    }
    let mut hour = Feed::of(&daemon, "since=1h&types=run.started").await;
    assert_eq!(hour.next().await["run"], first);
}

#[tokio::test]
async fn the_feed_refuses_what_it_does_not_know_and_narrow_tokens() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(WORK, json!({})).await;
    daemon.waits(&run, "signal").await;
    for query in ["types=moon", "types=run.", "since=nothing", "since=AX__________"] {
        let asked = daemon.get(&format!("/v1/events?{query}"));
        assert_eq!(refusal(asked).await, (400, "bad_request".to_owned()), "{query}");
    }
    let asked = daemon.get("/v1/events?limit=1");
    assert_eq!(refusal(asked).await, (400, "bad_query".to_owned()));
    let narrow = json!({"role": "observer", "scopes": [format!("run:{run}")], "ttl": "1h"});
    let narrow = ok(daemon.post("/v1/tokens", &narrow)).await["token"].as_str().unwrap().to_owned();
    let asked = daemon.with(&narrow, Method::GET, "/v1/events");
    assert_eq!(refusal(asked).await, (403, "forbidden_scope".to_owned()));
    let queue = json!({"role": "queue", "scopes": ["queue:q"], "ttl": "1h"});
    let queue = ok(daemon.post("/v1/tokens", &queue)).await["token"].as_str().unwrap().to_owned();
    let asked = daemon.with(&queue, Method::GET, "/v1/events");
    assert_eq!(refusal(asked).await, (403, "forbidden_verb".to_owned()));
}

#[tokio::test]
async fn the_past_of_a_run_is_read_in_pages_from_the_end() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(WORK, json!({})).await;
    daemon.waits(&run, "signal").await;
    ok(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
    let last = daemon.ended(&run).await["last_event"].as_u64().unwrap();
    let path = format!("/v1/runs/{run}/events?format=json");
    let page = ok(daemon.get(&format!("{path}&limit=2"))).await;
    let seqs = |page: &Value| -> Vec<u64> {
        page["items"].as_array().unwrap().iter().map(|it| it["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs(&page), [last - 1, last], "{page}");
    assert_eq!(page["items"][1]["type"], "run.ended");
    let before = page["next_cursor"].as_str().unwrap();
    let earlier = ok(daemon.get(&format!("{path}&limit=500&before={before}"))).await;
    assert_eq!(seqs(&earlier), (1..last - 1).collect::<Vec<_>>(), "{earlier}");
    assert_eq!(earlier["next_cursor"], Value::Null, "{earlier}");
    for query in ["format=xml", "format=json&limit=0", "before=3"] {
        let asked = daemon.get(&format!("/v1/runs/{run}/events?{query}"));
        assert_eq!(refusal(asked).await, (400, "bad_query".to_owned()), "{query}");
    }
}

#[tokio::test]
async fn the_command_prints_a_line_for_each_event() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let run = daemon.run_source(WORK, json!({})).await;
    daemon.waits(&run, "signal").await;
    let args = ["events", "--since", "first", "--types", "run", "--limit", "2"];
    let text = shell.run(&args).ok();
    for part in ["run.started", "run.waiting", &run] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
}

#[tokio::test]
async fn the_feed_has_sessions_workers_and_blueprints_also_after_a_crash() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let mut live = Feed::of(&daemon, "types=blueprint,session,worker").await;
    let put = json!({ "source": WORK });
    ok(daemon.put("/v1/blueprints/work", &put)).await;
    // The name stands for it already.
    ok(daemon.put("/v1/blueprints/work", &put)).await;
    ok(daemon.post("/v1/blueprints/work/archive", &json!({}))).await;
    ok(daemon.post("/v1/blueprints/work/restore", &json!({}))).await;
    ok(daemon.post("/v1/blueprints/work/archive", &json!({}))).await;
    ok(daemon.delete("/v1/blueprints/work")).await;
    let opened = ok(daemon.post("/v1/operators/main-ai/sessions", &json!({}))).await;
    let session = opened["session"].as_str().unwrap();
    let own = opened["token"].as_str().unwrap();
    let next = daemon.with(own, Method::POST, &format!("/v1/sessions/{session}/next"));
    ok(next.json(&json!({ "wait": "0s" }))).await;
    ok(daemon.delete(&format!("/v1/sessions/{session}"))).await;
    let lease = json!({ "queue": "q", "worker": "ann", "wait": "0s", "labels": { "gpu": "a100" } });
    ok(daemon.post("/v1/worker/lease", &lease)).await;
    let mut seen = Vec::new();
    while seen.len() < 9 {
        seen.push(live.next().await);
    }
    let kinds: Vec<&str> = seen.iter().map(|it| it["type"].as_str().unwrap()).collect();
    let of_blueprints = ["published", "archived", "restored", "archived", "deleted"];
    assert_eq!(kinds[..5], of_blueprints.map(|it| format!("blueprint.{it}")));
    assert_eq!(kinds[5..8], ["session.opened", "session.connected", "session.closed"]);
    assert_eq!(kinds[8], "worker.connected");
    assert_eq!((&seen[0]["blueprint"], &seen[0]["data"]["by"]), (&json!("work"), &json!("admin")));
    assert_eq!(seen[6]["data"]["operator"], "main-ai");
    assert_eq!(
        seen[8]["data"],
        json!({ "worker": "ann", "queue": "q", "labels": { "gpu": "a100" } })
    );
    assert!(seen.iter().all(|it| it.get("run").is_none() && it.get("seq").is_none()), "{seen:?}");
    let cursor = seen[4]["cursor"].as_str().unwrap().to_owned();
    daemon.kill();

    let daemon = Daemon::start(&data);
    let mut again = Feed::of(&daemon, &format!("types=session.opened,run&since={cursor}")).await;
    assert_eq!(again.next().await["data"]["session"], session);
    let run = daemon.run_source(WORK, json!({})).await;
    again.until(&run, "run.waiting").await;
    let mut all = Feed::of(&daemon, "since=first&blueprint=work").await;
    let all = all.until(&run, "run.waiting").await;
    let own: Vec<_> =
        all.iter().filter(|it| it["type"].as_str().unwrap().starts_with("blueprint")).collect();
    assert_eq!(own.len(), 5, "{all:?}");

    // Who may not read blueprints is not shown them, and is told so when they are asked for.
    let narrow = json!({ "role": "approver", "ttl": "1h" });
    let narrow = ok(daemon.post("/v1/tokens", &narrow)).await["token"].as_str().unwrap().to_owned();
    let asked = daemon.with(&narrow, Method::GET, "/v1/events?types=blueprint.published");
    assert_eq!(refusal(asked).await, (403, "forbidden_verb".to_owned()));
    let asked = daemon.with(&narrow, Method::GET, "/v1/events?since=first");
    let mut shown = Feed { answer: asked.send().await.unwrap(), buffer: String::new() };
    let shown = shown.until(&run, "run.waiting").await;
    assert!(shown.iter().all(|it| it["run"].is_string()), "{shown:?}");
}
