//! Everything at once, under a daemon that is killed again and again: processes, queues, sessions,
//! people, timers, signals, called runs, maps, state, files, schedules and compensation. Every run
//! ends as it should, nobody is set aside, and no event is missing.
//!
//! `MOONSWARM_STORM=full` is the long form: 120 kills over 120 runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

#[path = "sessions/client.rs"]
#[expect(dead_code, reason = "the storm needs a part of it")]
mod client;
mod support;

use client::{Opened, Socket, open_with};
use support::{Daemon, Dice, PATIENCE, Shell, numbered_events, send};

/// Each part of the flow adds something of its own to the sum, so that a part that was lost or done
/// twice shows in the output, in the total that all runs share, or in both.
const STORM: &str = r#"
local swarm = require("swarm")
local CHILD = [[
input=$(cat)
n=$(printf '%s' "$input" | sed -n 's/.*"n":\([0-9]*\).*/\1/p')
[ -n "$n" ] || exit 9
sleep 0.05
printf '{"n":%d}' $((n + 1))
]]
return swarm.blueprint {
  name = "storm",
  agents = {
    child  = { operator = "process", timeout = "1m", command = { "sh", "-c", CHILD } },
    remote = { operator = "queue", queue = "q", timeout = "10m" },
    coder  = { operator = "main-ai", worker = { subagent_type = "coder" }, timeout = "10m" },
    echo   = { operator = "echo" },
  },
  flow = function(ctx, input)
    local n, total = input.n, ctx:scope { custom = "storm" }
    ctx:defer(function() total:add("undone", n) end)
    local got = ctx:all {
      child  = function() return ctx:run("child", { n = n }).n end,
      remote = function() return ctx:run("remote", { n = n }).n end,
      coder  = function() return ctx:run("coder", { n = n }).n end,
      leaf   = function() return ctx:call("leaf", { n = n }) end,
      signal = function() return ctx:wait("go").n end,
      timer  = function() ctx:sleep("40ms") return n end,
    }
    local doubled = ctx:map({ 1, 2, 3, 4 }, function(i)
      ctx.state:add("seen", i)
      return ctx:run(i % 2 == 0 and "child" or "echo", { n = i }).n
    end, { concurrency = 2 })
    local file = ctx:artifact("n.txt", tostring(n))
    assert(ctx:read_artifact(file.id) == tostring(n))
    ctx:approve { title = "go on with " .. n .. "?" }
    total:add("done", n)
    local sum = got.child + got.remote + got.coder + got.leaf + got.signal + got.timer
    for _, one in ipairs(doubled) do sum = sum + one end
    if n % 5 == 0 then swarm.fail("planned", tostring(sum)) end
    return { sum = sum, seen = ctx.state:get("seen") }
  end,
}
"#;

const LEAF: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "leaf",
  agents = { e = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:sleep("20ms")
    return ctx:run("e", { n = input.n + 1000 }).n
  end,
}
"#;

const TICK: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "tick",
  agents = { e = { operator = "echo" } },
  on = { { schedule = "* * * * *", missed = "all" } },
  flow = function(ctx) return ctx:run("e", 1) end,
}
"#;

/// What a run adds up to.
fn sum(n: u64) -> u64 {
    let branches = (n + 1) + (n + 10) + (n + 100) + (n + 1_000) + (n + 7) + n;
    // Of the four of the map, the even ones pass a child that adds one.
    branches + 1 + 3 + 3 + 5
}

struct Size {
    runs: u64,
    kills: u64,
}

fn size() -> Size {
    match std::env::var("MOONSWARM_STORM").as_deref() {
        Ok("full") => Size { runs: 120, kills: 120 },
        _ => Size { runs: 20, kills: 12 },
    }
}

/// What all clients share.
struct World {
    url: watch::Receiver<String>,
    token: String,
    over: AtomicBool,
    /// How much was accepted, and a bell for each.
    accepted: AtomicU64,
    bell: Notify,
    /// How often each attempt's result was accepted for the first time.
    firsts: Mutex<BTreeMap<String, u32>>,
}

impl World {
    fn daemon(&self) -> Daemon {
        Daemon::of(&self.url.borrow(), &self.token)
    }

    fn over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn rings(&self) {
        self.accepted.fetch_add(1, Ordering::AcqRel);
        self.bell.notify_waiters();
    }

    /// Asks again until the daemon answers; a good client repeats itself with the same key.
    async fn ask(&self, request: impl Fn(&Daemon) -> RequestBuilder) -> (u16, Value) {
        loop {
            if let Ok(answer) = request(&self.daemon()).send().await {
                let status = answer.status().as_u16();
                if let Ok(text) = answer.text().await
                    && status != 503
                {
                    return (status, serde_json::from_str(&text).unwrap_or(Value::String(text)));
                }
            }
            if self.over() {
                return (0, Value::Null);
            }
            self.wait_for_a_daemon().await;
        }
    }

    async fn wait_for_a_daemon(&self) {
        let mut url = self.url.clone();
        let _ = tokio::time::timeout(Duration::from_millis(50), url.changed()).await;
    }

    /// Reports a result under a handle until somebody says what became of it.
    async fn report(&self, handle: &str, output: Value) {
        let body = json!({"output": output});
        let post =
            |daemon: &Daemon| daemon.with(handle, Method::POST, "/v1/worker/result").json(&body);
        let (status, answer) = self.ask(post).await;
        if status == 200 && answer["repeated"] == false {
            *self.firsts.lock().unwrap().entry(handle.to_owned()).or_default() += 1;
        }
        assert!(matches!(status, 0 | 200 | 401 | 409), "{status}: {answer}");
        self.rings();
    }
}

async fn queue_worker(world: Arc<World>) {
    let lease = json!({"queue": "q", "wait": "1s"});
    while !world.over() {
        let (status, leased) = world.ask(|daemon| daemon.post("/v1/worker/lease", &lease)).await;
        let Some(task) = leased.get(0).filter(|_| status == 200) else { continue };
        let handle = task["handle"].as_str().unwrap().to_owned();
        let get = |daemon: &Daemon| daemon.with(&handle, Method::GET, "/v1/worker/prompt");
        let (status, prompt) = world.ask(get).await;
        if status == 200 {
            let n = prompt["input"]["n"].as_u64().unwrap();
            world.report(&handle, json!({"n": n + 10})).await;
        }
    }
}

async fn session(world: Arc<World>, opened: Opened) {
    let mut last = None;
    while !world.over() {
        let daemon = Daemon::of(&world.url.borrow(), &opened.token);
        match opened.try_connect(&daemon, last).await {
            Ok(socket) => talk(&world, socket, &mut last).await,
            Err(_) => world.wait_for_a_daemon().await,
        }
    }
}

async fn talk(world: &Arc<World>, mut socket: Socket, last: &mut Option<u64>) {
    while !world.over() {
        let next = tokio::time::timeout(Duration::from_millis(200), socket.next()).await;
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(_) => continue,
        };
        if frame["method"] == "task/spawn" {
            let params = &frame["params"];
            let handle = params["handle"].as_str().unwrap();
            let get = |daemon: &Daemon| daemon.with(handle, Method::GET, "/v1/worker/prompt");
            let (status, prompt) = world.ask(get).await;
            if status == 200 {
                let n = prompt["input"]["n"].as_u64().unwrap();
                world.report(handle, json!({"n": n + 100})).await;
            }
        }
        if let ("task/spawn" | "task/cancel", Some(seq)) =
            (frame["method"].as_str().unwrap_or_default(), frame["seq"].as_u64())
        {
            *last = Some(seq);
            socket.notify("ack", json!({"seq": seq})).await;
        }
    }
}

/// Somebody who answers whatever is asked.
async fn person(world: Arc<World>) {
    while !world.over() {
        let (status, page) = world.ask(|daemon| daemon.get("/v1/tasks?operator=human")).await;
        let tasks = page["items"].as_array().filter(|_| status == 200).cloned().unwrap_or_default();
        for task in &tasks {
            let path = format!("/v1/tasks/{}/answer", task["id"].as_str().unwrap());
            let body = json!({"output": {"approved": true}});
            let (status, answer) = world.ask(|daemon| daemon.post(&path, &body)).await;
            assert!(matches!(status, 0 | 200 | 404 | 409), "{status}: {answer}");
            world.rings();
        }
        if tasks.is_empty() {
            world.wait_for_a_daemon().await;
        }
    }
}

fn launch(data: &Path) -> Daemon {
    // With the care that a host takes after it died three times in a row.
    Daemon::launch(data, &[("MOONSWARM_SAFE_MODE", "on")]).expect("it starts after every kill")
}

async fn numbered(daemon: &Daemon, run: &str) -> Value {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let events = numbered_events(&text);
    assert_eq!(events.last().unwrap()["type"], "run.ended");
    events[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_over_everything_at_once_ends_every_run_as_it_should() {
    let Size { runs, kills } = size();
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = launch(&data);
    for (name, source) in [("leaf", LEAF), ("storm", STORM), ("tick", TICK)] {
        let body = json!({"files": {"main.lua": source}});
        let (status, stored) = send(daemon.put(&format!("/v1/blueprints/{name}"), &body)).await;
        assert_eq!(status, 200, "{stored}");
    }
    let (moved, url) = watch::channel(daemon.url.clone());
    let world = Arc::new(World {
        url,
        token: daemon.token.clone(),
        over: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
        bell: Notify::new(),
        firsts: Mutex::default(),
    });
    let mut clients = JoinSet::new();
    let opened = open_with(&daemon, json!({})).await;
    clients.spawn(session(Arc::clone(&world), opened));
    clients.spawn(person(Arc::clone(&world)));
    for _ in 0..3 {
        clients.spawn(queue_worker(Arc::clone(&world)));
    }

    let starter = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for n in 1..=runs {
                let key = format!("run-{n}");
                let body = json!({"blueprint": "storm", "input": {"n": n}});
                let post = |daemon: &Daemon| {
                    daemon.post("/v1/runs", &body).header("idempotency-key", &key)
                };
                let (status, run) = world.ask(post).await;
                assert_eq!(status, 201, "{run}");
                let id = run["id"].as_str().unwrap().to_owned();
                let path = format!("/v1/runs/{id}/signals/go");
                let signal = json!({"n": n + 7});
                let post =
                    |daemon: &Daemon| daemon.post(&path, &signal).header("idempotency-key", &key);
                let (status, answer) = world.ask(post).await;
                assert!((200..300).contains(&status), "{status}: {answer}");
                world.rings();
                ids.push((n, id));
            }
            ids
        })
    };

    let mut dice = Dice(0x2545_F491_4F6C_DD1D);
    for _ in 0..kills {
        let more = world.accepted.load(Ordering::Acquire) + dice.roll(24);
        let busy = async {
            while world.accepted.load(Ordering::Acquire) < more {
                world.bell.notified().await;
            }
        };
        // Where nothing is accepted for a while, that moment is as good as another.
        let _ = tokio::time::timeout(Duration::from_millis(100 + dice.roll(500)), busy).await;
        daemon.kill();
        daemon = launch(&data);
        moved.send(daemon.url.clone()).unwrap();
    }

    let ids = tokio::time::timeout(2 * PATIENCE, starter).await.expect("all were started").unwrap();
    let distinct: BTreeSet<_> = ids.iter().map(|(_, id)| id).collect();
    assert_eq!(distinct.len() as u64, runs, "a repeated start is the same run");
    for (n, id) in &ids {
        let view = daemon.ended(id).await;
        if n % 5 == 0 {
            assert_eq!(view["error"]["kind"], "planned", "{view}");
            assert_eq!(view["error"]["message"], sum(*n).to_string(), "{view}");
        } else {
            assert_eq!(view["output"], json!({"sum": sum(*n), "seen": 10}), "{view}");
        }
        numbered(&daemon, id).await;
    }
    world.over.store(true, Ordering::Release);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let shared = async |key: &str| {
        let (status, value) = send(daemon.get(&format!("/v1/state/custom:storm/{key}"))).await;
        assert_eq!(status, 200, "{value}");
        value["value"].as_u64().unwrap()
    };
    assert_eq!(shared("done").await, (1..=runs).sum::<u64>(), "each run added itself once");
    let failed = (1..=runs).filter(|n| n % 5 == 0).sum::<u64>();
    assert_eq!(shared("undone").await, failed, "each failed run was undone once");
    let (_, paused) = send(daemon.get("/v1/runs?status=paused")).await;
    assert_eq!(paused["items"], json!([]), "nobody is set aside");
    let firsts = world.firsts.lock().unwrap().clone();
    assert!(firsts.values().all(|times| *times == 1), "accepted twice: {firsts:?}");
    let (_, ticks) = send(daemon.get("/v1/runs?blueprint=tick")).await;
    let mut minutes = BTreeSet::new();
    for tick in ticks["items"].as_array().unwrap() {
        let id = tick["id"].as_str().unwrap();
        daemon.ended(id).await;
        let started = numbered(&daemon, id).await;
        let at = started["data"]["trigger"]["at"].as_str().expect("a schedule names the minute");
        assert!(minutes.insert(at.to_owned()), "a schedule was due twice at {at}");
    }
    println!("{kills} kills, {runs} runs, {} reports accepted first", firsts.len());
}
