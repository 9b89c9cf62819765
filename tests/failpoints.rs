//! A daemon that is killed at any one of its kill points, and started again, ends as if nothing had
//! happened.
//!
//! One scenario uses everything that hands something over: blueprints, tokens, a pull worker with an
//! artifact and effects, a child process, a person, a timer, signals from outside and between runs,
//! called runs, and a cancel that compensates. It is played once to learn which points there are,
//! and once more for each of them, with a kill there; the client does what a good client does, and
//! asks again with the same `Idempotency-Key`. The quick form kills at the first and at the last
//! time that each point is reached; `MOONSWARM_WALK=all` at every time, and
//! `MOONSWARM_WALK=engine.dispatch#2` at that one only.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};
use support::{Daemon, PAUSE, elapse, numbered_events, repository};

/// Nothing in the scenario takes longer, not even a lease that has to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Scenarios that are played at the same time.
const WORKERS: usize = 4;
/// How long a pull worker keeps a task: a lease whose answer was lost comes back after it.
const LEASE: &str = "1500ms";

const WALK: &str = r#"
local swarm = require("swarm")
local CHILD = [[
printf 'start %s %s\n' "$1" "$2" >> "$3/ledger"
printf 'end %s %s\n' "$1" "$2" >> "$3/ledger"
printf '{"value":%d}' $(( $4 * 31 ))
]]
return swarm.blueprint {
  name = "walk",
  agents = {
    remote = { operator = "queue", queue = "q" },
    child = { operator = "process", timeout = "1m",
      command = { "sh", "-c", CHILD, "child", "{{ name }}", "{{ attempt }}", "{{ dir }}", "{{ value }}" } },
    ask = { operator = "human" },
  },
  flow = function(ctx, input)
    ctx.state:add("rounds", 1)
    local shared = ctx:scope("global"):add("walks")
    local remote = ctx:run("remote", { n = 1 })
    local noted = ctx.state:get("noted")
    local worked = ctx:run("child", { name = "work", dir = input.dir, value = remote.value }).value
    local said = ctx:run("ask", { title = "go on?" })
    ctx:sleep("1ms")
    local going = ctx:wait("go")
    ctx:signal(input.listener, "news", { worked = worked })
    local doubled = ctx:call("leaf", { value = worked })
    local note = ctx:artifact("note.txt", "worked " .. worked)
    return { shared = shared, noted = noted, worked = worked, said = said, going = going, doubled = doubled,
             note = ctx:read_artifact(note.id), rounds = ctx.state:add("rounds", 0) }
  end,
}
"#;

const LEAF: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "leaf",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    if input.forever then ctx:wait("never") end
    return ctx:run("echo", { value = input.value * 2 }).value
  end,
}
"#;

const LISTEN: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "listen", agents = {},
  flow = function(ctx)
    local effect, news = ctx:wait("effect"), ctx:wait("news")
    return { effect = effect, news = news }
  end,
}
"#;

const DOOMED: &str = r#"
local swarm = require("swarm")
local UNDO = [[printf 'start undo %s\n' "$1" >> "$2/ledger"; printf 'end undo %s\n' "$1" >> "$2/ledger"]]
return swarm.blueprint {
  name = "doomed",
  agents = { undo = { operator = "process", command = { "sh", "-c", UNDO, "undo", "{{ attempt }}", "{{ dir }}" } } },
  flow = function(ctx, input)
    ctx:defer(function() ctx:run("undo", { dir = input.dir }) end)
    ctx:call("leaf", { forever = true })
  end,
}
"#;

/// A client that outlives its daemons.
struct Client {
    dir: PathBuf,
    daemon: Option<Daemon>,
    /// Where the next daemons die; without any left, they live.
    kills: Vec<String>,
    lives: usize,
}

impl Client {
    fn new(dir: &Path, kills: &[String]) -> Self {
        let kills = kills.iter().rev().cloned().collect();
        Self { dir: dir.to_owned(), daemon: None, kills, lives: 0 }
    }

    fn log_of(&self, life: usize) -> PathBuf {
        self.dir.join(format!("points-{life}"))
    }

    fn daemon(&mut self) -> &Daemon {
        while self.daemon.is_none() {
            let log = self.log_of(self.lives);
            let mut env = vec![("MOONSWARM_LEASE", LEASE), ("MOONSWARM_SHARDS", "1")];
            let at = self.kills.pop();
            if let Some(at) = &at {
                env.extend([
                    ("MOONSWARM_KILL_AT", at.as_str()),
                    ("MOONSWARM_KILL_LOG", log.to_str().unwrap()),
                ]);
            }
            self.lives += 1;
            self.daemon = Daemon::launch(&self.dir.join("data"), &env);
            assert!(self.daemon.is_some() || at.is_some(), "it does not start: {}", self.said());
        }
        self.daemon.as_ref().unwrap()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("data.log")).unwrap_or_default()
    }

    /// Asks until there is an answer, of this daemon or of the next.
    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        by: By<'_>,
    ) -> (u16, Value) {
        loop {
            let daemon = self.daemon();
            let token = match by {
                By::Admin(_) | By::Nobody => daemon.token.clone(),
                By::Token(token) | By::Worker(token, _) => token.to_owned(),
            };
            let mut request = daemon.with(&token, method.clone(), path);
            if let By::Admin(key) | By::Worker(_, key) = by {
                request = request.header("idempotency-key", key);
            }
            if let Some(body) = body {
                request = request.json(body);
            }
            let answer = async {
                let answer = request.send().await?;
                let status = answer.status().as_u16();
                Ok::<_, reqwest::Error>((status, answer.text().await?))
            };
            match answer.await {
                Ok((status, text)) => {
                    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
                    return (status, body);
                }
                Err(error) => {
                    let daemon = self.daemon.take().unwrap();
                    assert!(daemon.died(), "{method} {path}: {error}\n{}", self.said());
                }
            }
        }
    }

    async fn ok(&mut self, method: Method, path: &str, body: Option<&Value>, by: By<'_>) -> Value {
        let (status, answer) = self.ask(method, path, body, by).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}\n{}", self.said());
        answer
    }

    async fn get(&mut self, path: &str) -> Value {
        self.ok(Method::GET, path, None, By::Nobody).await
    }

    async fn post(&mut self, path: &str, body: &Value, key: &str) -> Value {
        self.ok(Method::POST, path, Some(body), By::Admin(key)).await
    }

    /// Looks at something until it is so.
    async fn until(&mut self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        // Not `eventually`: its closures cannot be sent to the tasks that play trials.
        let since = Instant::now();
        loop {
            let seen = self.get(path).await;
            if is_so(&seen) {
                return seen;
            }
            assert!(since.elapsed() < PATIENCE, "{path} stays {seen}\n{}", self.said());
            elapse(PAUSE).await;
        }
    }

    async fn ended(&mut self, run: &str) -> Value {
        self.until(&format!("/v1/runs/{run}?wait=5s"), |view| !view["ended_at"].is_null()).await
    }
}

/// Who asks, and with which `Idempotency-Key`.
#[derive(Clone, Copy)]
enum By<'a> {
    Nobody,
    Admin(&'a str),
    Token(&'a str),
    Worker(&'a str, &'a str),
}

/// The runs of a scenario.
struct Cast {
    walk: String,
    listen: String,
    doomed: String,
    worker: String,
    revoked: String,
}

async fn begin(client: &mut Client) -> Cast {
    for (name, source) in [("leaf", LEAF), ("listen", LISTEN), ("doomed", DOOMED), ("walk", WALK)] {
        let body = json!({ "files": { "main.lua": source } });
        client.ok(Method::PUT, &format!("/v1/blueprints/{name}"), Some(&body), By::Nobody).await;
    }
    let mint = json!({ "role": "queue", "scopes": ["queue:q"], "ttl": "1h" });
    let worker = client.post("/v1/tokens", &mint, "worker").await;
    let revoked = client.post("/v1/tokens", &mint, "revoked").await;
    let gone = format!("/v1/tokens/{}", revoked["jti"].as_str().unwrap());
    client.ok(Method::DELETE, &gone, None, By::Nobody).await;
    let mut ids = HashMap::new();
    for name in ["listen", "doomed", "walk"] {
        let input = json!({ "dir": client.dir, "listener": ids.get("listen") });
        let start = json!({ "blueprint": name, "input": input });
        let run = client.post("/v1/runs", &start, name).await;
        ids.insert(name, run["id"].as_str().unwrap().to_owned());
    }
    let text = |value: &Value| value["token"].as_str().unwrap().to_owned();
    let mut id = |name| ids.remove(name).unwrap();
    Cast {
        walk: id("walk"),
        listen: id("listen"),
        doomed: id("doomed"),
        worker: text(&worker),
        revoked: text(&revoked),
    }
}

/// Does the task of the queue as a pull worker: a lease that is lost is taken anew.
async fn work(client: &mut Client, cast: &Cast) {
    let ask = json!({ "queue": "q", "wait": "3s" });
    let effects = json!([
        { "type": "write_memory", "scope": { "workflow": cast.walk }, "key": "noted", "value": "by the worker" },
        { "type": "signal", "target": cast.listen,
          "payload": { "signal_type": "effect", "data": { "n": 1 } } },
        { "type": "handoff", "operator": "echo", "state": { "value": 7 } },
    ]);
    let result = json!({ "output": { "value": 7 }, "effects": effects });
    let since = Instant::now();
    'lease: loop {
        assert!(since.elapsed() < PATIENCE, "the task does not come\n{}", client.said());
        let (status, leased) =
            client.ask(Method::POST, "/v1/worker/lease", Some(&ask), By::Token(&cast.worker)).await;
        assert!(matches!(status, 200 | 204), "{status} {leased}");
        let Some(handle) = leased[0]["handle"].as_str() else { continue };
        let steps = [
            (Method::GET, "/v1/worker/prompt", None),
            (Method::POST, "/v1/worker/heartbeat", None),
            (Method::POST, "/v1/worker/artifact?name=report.txt", Some(json!("a report"))),
            (Method::POST, "/v1/worker/result", Some(result.clone())),
        ];
        for (method, path, body) in steps {
            let by = By::Worker(handle, "once");
            let (status, answer) = client.ask(method, path, body.as_ref(), by).await;
            match (status, answer["code"].as_str()) {
                (200, None) => {}
                (409, Some("fenced")) => continue 'lease,
                _ => panic!("{path}: {status} {answer}\n{}", client.said()),
            }
        }
        return;
    }
}

/// Plays the scenario to its end, whoever dies.
async fn play(client: &mut Client) -> Cast {
    let cast = begin(client).await;
    work(client, &cast).await;

    let tasks = client.until("/v1/tasks?kind=human", |tasks| tasks["items"][0].is_object()).await;
    let task = tasks["items"][0]["id"].as_str().unwrap();
    client.post(&format!("/v1/tasks/{task}/answer"), &json!({ "output": "yes" }), "answer").await;
    client.post(&format!("/v1/runs/{}/signals/go", cast.walk), &json!("now"), "go").await;

    client
        .until("/v1/runs?blueprint=leaf&status=waiting", |runs| runs["items"][0].is_object())
        .await;
    let cancel = format!("/v1/runs/{}/cancel", cast.doomed);
    client.post(&cancel, &json!({ "reason": "enough" }), "cancel").await;
    for run in [&cast.walk, &cast.listen, &cast.doomed] {
        client.ended(run).await;
    }
    cast
}

/// The ledger's lines of one name: the attempts that began and that ended.
fn ledger(dir: &Path, name: &str) -> (Vec<u64>, Vec<u64>) {
    let text = std::fs::read_to_string(dir.join("ledger")).unwrap_or_default();
    let of = |what: &str| {
        let prefix = format!("{what} {name} ");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse().ok()).collect()
    };
    (of("start"), of("end"))
}

/// Everything that was acknowledged is there, once.
async fn check(client: &mut Client, cast: &Cast, kills: usize) {
    let walk = client.ended(&cast.walk).await;
    let worked = 7 * 31;
    let expected = json!({
        "shared": 1, "noted": "by the worker", "worked": worked, "said": "yes", "going": "now",
        "doubled": 2 * worked, "note": format!("worked {worked}"), "rounds": 1,
    });
    assert_eq!((&walk["status"], &walk["output"]), (&json!("completed"), &expected), "{walk}");
    let listen = client.ended(&cast.listen).await;
    let heard = json!({ "effect": { "n": 1 }, "news": { "worked": worked } });
    assert_eq!((&listen["status"], &listen["output"]), (&json!("completed"), &heard), "{listen}");
    let doomed = client.ended(&cast.doomed).await;
    assert_eq!(doomed["status"], "canceled", "{doomed}");

    // A called run is canceled after its caller, by a message that is durable with the caller's end.
    let have_ended =
        |all: &Value| all["items"].as_array().unwrap().iter().all(|run| !run["ended_at"].is_null());
    let all = client.until("/v1/runs?limit=50", have_ended).await;
    let mut seen: Vec<_> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["blueprint"].as_str().unwrap(), run["status"].as_str().unwrap()))
        .collect();
    seen.sort_unstable();
    let cast_of = [
        ("doomed", "canceled"),
        ("leaf", "canceled"),
        ("leaf", "completed"),
        ("listen", "completed"),
        ("walk", "completed"),
    ];
    assert_eq!(seen, cast_of, "{all}");

    for (run, steps) in [(&cast.walk, 13), (&cast.listen, 2), (&cast.doomed, 2)] {
        once(client, run, steps).await;
    }
    for (run, name) in [(&cast.walk, "work"), (&cast.doomed, "undo")] {
        let page = client.get(&format!("/v1/runs/{run}/steps")).await;
        let agent = if name == "work" { "child" } else { "undo" };
        let step = page["items"].as_array().unwrap().iter().find(|step| step["name"] == agent);
        let attempts = step.unwrap()["attempts"].as_u64().unwrap();
        assert!(attempts as usize <= kills + 1, "{page}");
        let (starts, ends) = ledger(&client.dir, name);
        assert!(starts.windows(2).all(|two| two[0] < two[1]), "twice: {name} {starts:?}");
        assert_eq!((starts.last(), ends.last()), (Some(&attempts), Some(&attempts)), "{name}");
    }
    let files = client.get(&format!("/v1/runs/{}/artifacts", cast.walk)).await;
    let mut names: Vec<_> = files["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["note.txt", "report.txt"], "{files}");
    let open = client.get("/v1/tasks").await;
    assert_eq!(open["items"], json!([]));
    let (status, _) = client
        .ask(
            Method::POST,
            "/v1/worker/lease",
            Some(&json!({"queue": "q"})),
            By::Token(&cast.revoked),
        )
        .await;
    assert_eq!(status, 401, "a revoked token counts again");
}

/// The events of a run have no gap, and every step ended once.
async fn once(client: &mut Client, run: &str, steps: usize) {
    let text = client.get(&format!("/v1/runs/{run}/events")).await;
    let mut ends: BTreeMap<u64, u32> = BTreeMap::new();
    let events = numbered_events(text.as_str().unwrap());
    for event in &events {
        let kind = event["type"].as_str().unwrap();
        if matches!(kind, "step.completed" | "step.failed" | "step.canceled") {
            *ends.entry(event["data"]["step"].as_u64().unwrap()).or_default() += 1;
        }
    }
    assert_eq!(ends.len(), steps, "{text}");
    assert!(ends.values().all(|times| *times == 1), "a step ended twice: {text}");
    assert_eq!(events.iter().filter(|event| event["type"] == "run.ended").count(), 1, "{text}");
}

/// Plays it with these kills; answers with the names of the points that each killed life reached,
/// in order, and whether all the kills came.
async fn trial(kills: &[String]) -> (Vec<Vec<String>>, bool) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().canonicalize().unwrap();
    let mut client = Client::new(&dir, kills);
    let cast = play(&mut client).await;
    check(&mut client, &cast, kills.len()).await;
    // It may die at its end as well.
    let ended = client.daemon.take().unwrap().stop();
    let came = client.kills.is_empty() && (client.lives > kills.len() || ended != Some(0));
    client.kills.clear();
    check(&mut client, &cast, kills.len()).await;
    assert_eq!(client.daemon.take().unwrap().stop(), Some(0), "{}", client.said());
    let points = |life: usize| {
        let text = std::fs::read_to_string(client.log_of(life)).unwrap_or_default();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    ((0..kills.len()).map(points).collect(), came)
}

/// Plays trials, some at a time; a failure says which kill it was.
async fn trials(list: Vec<Vec<String>>) -> (usize, BTreeSet<String>) {
    let queue = std::sync::Arc::new(Mutex::new(list));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let queue = queue.clone();
        workers.push(tokio::spawn(async move {
            let (mut came, mut reached) = (0, BTreeSet::new());
            loop {
                let next = queue.lock().unwrap().pop();
                let Some(kills) = next else { return (came, reached) };
                let label = kills.join(" then ");
                let done = tokio::spawn(async move { trial(&kills).await }).await;
                let (points, all) =
                    done.unwrap_or_else(|error| panic!("killed at {label}: {error}"));
                came += usize::from(all);
                reached.extend(points.into_iter().flatten());
            }
        }));
    }
    let (mut came, mut reached) = (0, BTreeSet::new());
    for worker in workers {
        let (more, points) = worker.await.unwrap();
        came += more;
        reached.extend(points);
    }
    (came, reached)
}

/// The kills that walk a life: each point's first and last time, or every time.
fn walk(points: &[String]) -> (Vec<String>, bool) {
    match std::env::var("MOONSWARM_WALK").as_deref() {
        Ok("all") => return ((1..=points.len()).map(|n| n.to_string()).collect(), true),
        Ok(one) => return (vec![one.to_owned()], false),
        Err(_) => {}
    }
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for name in points {
        *times.entry(name).or_default() += 1;
    }
    let mut kills = Vec::new();
    for (name, times) in times {
        kills.push(format!("{name}#1"));
        if times > 1 {
            kills.push(format!("{name}#{times}"));
        }
    }
    (kills, false)
}

/// The points that the program has.
fn known() -> BTreeSet<String> {
    fn read(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let parts = text.split("fault::point(\"").skip(1);
                names.extend(
                    parts.filter_map(|part| part.split_once('"')).map(|(name, _)| name.to_owned()),
                );
            }
        }
    }
    let mut names = BTreeSet::new();
    read(&repository("src"), &mut names);
    names
}

fn report(what: &str, points: usize, kills: usize, came: usize, all: bool, since: Instant) {
    let form = if all { "every time" } else { "first and last time; MOONSWARM_WALK=all for every" };
    println!(
        "{what}: {points} points reached in one life, {kills} kills tried ({form}), {came} came, {:.1?}",
        since.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_at_any_point_ends_as_if_it_had_lived() {
    let since = Instant::now();
    let (lives, came) = trial(&["0".to_owned()]).await;
    assert!(!came, "nobody was to be killed");
    let (kills, all) = walk(&lives[0]);
    let count = kills.len();
    let (came, mut reached) = trials(kills.into_iter().map(|kill| vec![kill]).collect()).await;
    reached.extend(lives[0].iter().cloned());
    report("killed once", lives[0].len(), count, came, all, since);
    let missed: Vec<_> = known().into_iter().filter(|name| !reached.contains(name)).collect();
    println!("not reached in a first life: {}", missed.join(", "));
    assert!(came * 10 >= count * 9, "only {came} of {count} kills came");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_again_while_it_recovers_ends_as_if_it_had_lived() {
    let since = Instant::now();
    let first = "operator.process_spawned#1".to_owned();
    let (lives, _) = trial(&[first.clone(), "0".to_owned()]).await;
    let mut reached: BTreeSet<String> = lives.concat().into_iter().collect();
    // What the second life does after its recovery was walked in a first life.
    let recovery: Vec<String> =
        lives[1].iter().take_while(|name| *name != "engine.answer").cloned().collect();
    let (kills, all) = walk(&recovery);
    let count = kills.len();
    let list = kills.into_iter().map(|kill| vec![first.clone(), kill]).collect();
    let (came, more) = trials(list).await;
    reached.extend(more);
    report("killed again in the recovery", recovery.len(), count, came, all, since);
    for name in ["engine.load", "engine.replayed", "engine.next_attempt", "engine.taken_up"] {
        assert!(reached.contains(name), "{name} was not reached");
    }
    assert!(came * 10 >= count * 9, "only {came} of {count} kills came");
}
