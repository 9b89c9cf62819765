//! Each page with 10,000 of its things, for a token of each role.

use std::{path::Path, sync::mpsc};

use moonswarm::{
    blueprint::Bundle,
    journal::Dimension,
    protocol::{Failure, StoreOptions, Tags},
    store::{
        Batch, BlueprintRow, Header, Opened, Options, RunStatus, RunWrite, SessionRow, Synchronous,
        TokenRow, Write, open,
    },
};
use serde_json::json;

use crate::{
    person::{Person, Shown, daemon, mint},
    support::{Daemon, eventually, send, stored_run::stored_run, when},
};

const MANY: u64 = 10_000;
/// Each is compiled when it is first looked at.
const BLUEPRINTS: u64 = 1_000;
/// The maximum size of a page, in bytes.
const ROOM: usize = 150_000;
/// The writes of one batch without a run.
const TOGETHER: usize = 1_000;

/// Opens as many tasks as it is told, for a person or for queues of their own.
const ASKS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "asks",
  agents = { ask = { operator = "human", prompt = "Number {{ n }}?" }, job = { operator = "queue", queue = "jobs" } },
  flow = function(ctx, input)
    ctx:map(table.create(input.tasks, 1), function(_, n) ctx:run(input.agent, { n = n }) end)
  end,
}
"#;

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}

/// A writer into the store of a host that does not run.
struct Seed {
    opened: Opened,
    tell: mpsc::Sender<bool>,
    told: mpsc::Receiver<bool>,
    sent: usize,
}

impl Seed {
    fn of(data: &Path) -> Self {
        let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
        let (tell, told) = mpsc::channel();
        Self { opened: open(data, &options, None).unwrap(), tell, told, sent: 0 }
    }

    async fn send(&mut self, run: Option<RunWrite>, writes: Vec<Write>) {
        let tell = self.tell.clone();
        let ack = Box::new(move |result: Result<(), _>| {
            // The test may have failed already.
            let _ = tell.send(result.is_ok());
        });
        self.opened.store.room().await;
        self.opened.store.submit(Batch { checks: Vec::new(), run, writes, ack });
        self.sent += 1;
    }

    async fn write(&mut self, writes: impl Iterator<Item = Write>) {
        let mut writes = writes.peekable();
        while writes.peek().is_some() {
            let some = writes.by_ref().take(TOGETHER).collect();
            self.send(None, some).await;
        }
    }

    /// A run that has ended: the children of the first, in many blueprints, one in ten failed.
    async fn run(&mut self, n: u64, first: &mut Option<u64>) {
        let (num, created_ms) = (self.opened.store.next_run(), now_ms() - (MANY - n) * 1_000);
        let parent = first.map(|first| (first, u32::try_from(n).unwrap()));
        first.get_or_insert(num);
        let is_bad = n % 10 == 1;
        let failure = Failure::new("timeout", format!("<script>alert({n})</script> \u{202e}late"));
        let tags = [("customer".to_owned(), format!("c{}", n % 50))].into();
        let ended_ms = created_ms + 500 + n % 900;
        let header = Header {
            blueprint: format!("b{}", n % 40),
            hash: "ab".repeat(32),
            status: if is_bad { RunStatus::Failed } else { RunStatus::Completed },
            parent,
            principal: "team".to_owned(),
            updated_ms: ended_ms,
            ended_ms: Some(ended_ms),
            error: is_bad.then(|| serde_json::to_string(&failure).unwrap()),
            tags: Tags::new(tags).unwrap(),
            ..Header::fresh(num, created_ms)
        };
        let counted = [(Dimension::Blueprint, "", ended_ms - created_ms)];
        let (run, writes) = stored_run(&*self.opened.store, header, &counted);
        self.send(Some(run), writes).await;
    }

    fn close(self) {
        for _ in 0..self.sent {
            assert!(self.told.recv().unwrap(), "a batch was refused");
        }
        self.opened.upkeep.close().unwrap();
    }
}

/// Writes 10,000 of all that can be stored while no host runs.
async fn fill(data: &Path) {
    let mut seed = Seed::of(data);
    let like = seed.opened.store.tokens().unwrap().into_iter().find(|it| it.role == "observer");
    let (like, now_ms) = (like.expect("a token was minted"), now_ms());
    let mut first = None;
    for n in 0..MANY {
        seed.run(n, &mut first).await;
    }
    seed.write((0..MANY).map(|n| {
        let jti = format!("many{n}");
        let mut claims: serde_json::Value = serde_json::from_str(&like.claims).unwrap();
        claims["jti"] = json!(jti);
        claims["sub"] = json!(format!("admin/observer:person {n} <script>\u{202e}"));
        Write::PutToken(TokenRow { jti, claims: claims.to_string(), ..like.clone() })
    }))
    .await;
    let put = |scope: String, key: String, n: u64| Write::PutState {
        scope,
        key,
        value: json!({ "n": n, "text": "🌙 moon" }).to_string(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: now_ms,
    };
    seed.write((0..MANY).map(|n| put("custom:notes".into(), format!("k{n:05}"), n))).await;
    seed.write((0..MANY).map(|n| put(format!("custom:s{n:05}"), "k".into(), n))).await;
    seed.write((0..MANY).map(|n| {
        Write::PutSession(Box::new(SessionRow {
            id: format!("ses_{n}"),
            operator: "coder".to_owned(),
            principal: format!("agent {n}"),
            jti: like.jti.clone(),
            until_ms: now_ms + 3_600_000,
            created_ms: now_ms,
            expires_ms: now_ms + 3_600_000,
            direct: false,
            last_seq: 0,
            acked_seq: 0,
            closed_ms: None,
            reason: None,
        }))
    }))
    .await;
    let (_, hash, _) = seed.opened.store.blueprint_names().unwrap().swap_remove(0);
    let publisher = seed.opened.store.blueprint(&hash).unwrap().unwrap().publisher;
    let blueprint = |n: u64| {
        let name = format!("b{n}");
        let on = "{ schedule = \"0 7 * * *\" }, ".repeat(10);
        let source = format!(
            "return require(\"swarm\").blueprint {{ name = \"{name}\", on = {{ {on} }}, \
             flow = function() return {n} end }}"
        );
        let bundle = Bundle::from_source("main.lua", source).unwrap();
        let (hash, at_ms) = (bundle.hash().to_owned(), now_ms);
        let row = BlueprintRow {
            hash: hash.clone(),
            name: name.clone(),
            bundle: bundle.encode(),
            created_ms: at_ms,
            publisher: publisher.clone(),
        };
        [Write::PutBlueprint(row), Write::NameBlueprint { name, hash, at_ms }]
    };
    seed.write((0..BLUEPRINTS).flat_map(blueprint)).await;
    seed.close();
}

/// Opens 10,000 tasks for a person, and one for each of 300 workers.
async fn ask(daemon: &Daemon) -> String {
    let put = daemon.put("/v1/blueprints/asks", &json!({ "source": ASKS }));
    assert_eq!(send(put).await.0, 200);
    let start = async |agent: &str, tasks: u64| {
        let input = json!({ "agent": agent, "tasks": tasks });
        let body = json!({ "blueprint": "asks", "input": input });
        let (status, run) = send(daemon.post("/v1/runs", &body)).await;
        assert_eq!(status, 201, "{run}");
        run["id"].as_str().unwrap().to_owned()
    };
    let mut run = String::new();
    for _ in 0..10 {
        run = start("ask", MANY / 10).await;
    }
    start("job", 300).await;
    for n in 0..300 {
        let lease = json!({ "queue": "jobs", "wait": "20s", "worker": format!("<b>worker {n}") });
        let (status, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
        assert_eq!(status, 200, "{leased}");
    }
    eventually("every question is open", async || {
        let (_, page) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
        when(page["steps"] == MANY / 10, page["steps"].to_string())
    })
    .await;
    run
}

#[tokio::test]
async fn every_page_of_very_many_things_is_small_for_each_role() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    mint(&daemon, "observer", &json!({})).await;
    daemon.stop();
    let data = dir.path().join("data");
    fill(&data).await;
    let daemon = Daemon::start(&data);
    let asks = ask(&daemon).await;
    let (_, runs) = send(daemon.get("/v1/runs?blueprint=b1&limit=1")).await;
    let child = runs["items"][0]["id"].as_str().unwrap().to_owned();
    let (_, child_view) = send(daemon.get(&format!("/v1/runs/{child}"))).await;
    let parent = child_view["parent"].as_str().expect("it was called").to_owned();
    let mut paths: Vec<_> = [
        "/ui",
        "/ui/runs",
        "/ui/runs?status=failed&q=timeout",
        "/ui/runs?tag=customer%3Dc7",
        "/ui/inbox",
        "/ui/inbox?show=mine",
        "/ui/inbox?q=number+9999",
        "/ui/inbox?show=mine&q=number",
        "/ui/inbox?show=answered",
        "/ui/inbox?show=answered-mine&q=ann",
        "/ui/blueprints",
        "/ui/blueprints?q=b99",
        "/ui/blueprints/b7",
        "/ui/blueprints/b7?tab=graph",
        "/ui/blueprints/b7?tab=versions",
        "/ui/blueprints/b7?tab=stubs",
        "/ui/blueprints?archived=1",
        "/ui/operators",
        "/ui/triggers",
        "/ui/usage",
        "/ui/state",
        "/ui/state?scope=custom:notes",
        "/ui/state?scope=custom:notes&q=moon",
        "/ui/tokens",
        "/ui/tokens?all=1",
        "/ui/system",
    ]
    .map(str::to_owned)
    .into();
    for run in [&child, &parent, &asks] {
        for tab in ["steps", "graph", "data", "events", "artifacts", "state", "children", "log"] {
            paths.push(format!("/ui/runs/{run}?tab={tab}"));
        }
    }
    paths.push(format!("/ui/runs/{asks}/steps/500"));
    paths.push(format!("/ui/runs/{asks}/fork?step=500"));
    paths.push(format!("/ui/runs/{asks}?tab=source&at=500"));
    paths.push(format!("/ui/runs/{parent}?tab=children&status=failed,completed"));
    let mut troubles = Vec::new();
    for role in ["admin", "operator", "approver", "observer"] {
        let person = Person::of_role(&daemon, role).await;
        let mut seen = 0;
        for path in &paths {
            let Shown { status, html, .. } = person.get(path).await;
            let is_plain = !html.contains("<script>") && !html.contains('\u{202e}');
            match status {
                200 if html.len() < ROOM && is_plain => seen += 1,
                403 => {}
                _ => troubles.push(format!("{role} {path}: {status}, {} bytes", html.len())),
            }
        }
        assert!(seen > 20, "{role} sees {seen}");
    }
    assert!(troubles.is_empty(), "{}", troubles.join("\n"));
}
