//! Clients that start runs through several nodes while these fail, and the judgement of what became of
//! the runs: nothing that was acknowledged is lost, and nothing was done twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Daemon, eventually, send, when};

/// A run of a few steps that takes a moment, and counts each step in a place that all runs share.
const COUNTED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "counted",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    local sum = 0
    for step = 1, 6 do
      sum = sum + ctx:run("echo", { n = step }).n
      ctx:scope("global"):add("steps")
      ctx:sleep("20ms")
    end
    return sum
  end,
}
"#;
/// The number of steps of such a run, and its result.
const STEPS: usize = 6;
const SUM: usize = 21;
/// The pause of a client between two runs, and after a failure.
const PAUSE: Duration = Duration::from_millis(20);

/// A node as clients know it.
#[derive(Clone)]
struct Entrance {
    name: String,
    url: String,
    token: String,
}

/// What the clients share.
#[derive(Default)]
struct Shared {
    entrances: Mutex<Vec<Entrance>>,
    /// The run of each key that was acknowledged.
    runs: Mutex<BTreeMap<String, String>>,
    /// The failures at nodes that were not taken away in the meantime.
    disturbed: Mutex<Vec<String>>,
    stops: AtomicBool,
    begun: AtomicUsize,
}

/// Clients that start runs until they are stopped, each with a key, until it is acknowledged.
pub struct Load {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts clients.
    pub fn start(callers: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let callers =
            (0..callers).map(|caller| tokio::spawn(call(Arc::clone(&shared), caller))).collect();
        Self { shared, callers }
    }

    /// Lets the clients use a node.
    pub fn enter(&self, name: &str, node: &Daemon) {
        let (name, url, token) = (name.to_owned(), node.url.clone(), node.token.clone());
        self.shared.entrances.lock().push(Entrance { name, url, token });
    }

    /// Takes a node away from the clients, as a load balancer does.
    pub fn take_away(&self, name: &str) {
        self.shared.entrances.lock().retain(|it| it.name != name);
    }

    /// Returns the number of acknowledged runs.
    pub fn acknowledged(&self) -> usize {
        self.shared.runs.lock().len()
    }

    /// Waits until more runs are acknowledged.
    pub async fn goes_on(&self, more: usize) {
        let least = self.acknowledged() + more;
        eventually("runs are acknowledged", async || {
            let now = self.acknowledged();
            when(now >= least, format!("{now} of {least}; {:?}", self.disturbed().last()))
        })
        .await;
    }

    /// Returns the failures at nodes that clients were told to use.
    pub fn disturbed(&self) -> Vec<String> {
        self.shared.disturbed.lock().clone()
    }

    /// Stops the clients, each after its last run is acknowledged, and judges.
    pub async fn judge(self, node: &Daemon, sql: impl Fn(&str) -> String) {
        self.shared.stops.store(true, Ordering::SeqCst);
        for caller in self.callers {
            caller.await.unwrap();
        }
        let runs = std::mem::take(&mut *self.shared.runs.lock());
        assert_eq!(runs.len(), self.shared.begun.load(Ordering::SeqCst), "each is acknowledged");
        for (key, run) in &runs {
            let path = format!("/v1/runs/{run}?wait=60s");
            let view = eventually("an acknowledged run ends", async || {
                let (status, view) = send(node.get(&path)).await;
                when(status == 200 && !view["ended_at"].is_null(), view.to_string()).map(|()| view)
            })
            .await;
            assert_eq!(view["output"], SUM, "{view}");
            let (status, again) = send(start(node, key)).await;
            assert!(status < 300, "{again}");
            assert_eq!(again["id"], json!(run), "the key {key} is that of one run");
        }
        let distinct: BTreeSet<_> = runs.values().collect();
        assert_eq!(distinct.len(), runs.len(), "each key has a run of its own");
        let count = |query: &str| sql(query).trim().parse::<usize>().unwrap();
        assert_eq!(count("SELECT count(*) FROM moonswarm.runs"), runs.len(), "no run came twice");
        let steps = count(
            "SELECT convert_from(value, 'UTF8') FROM moonswarm.state WHERE key = 'steps'::bytea",
        );
        assert_eq!(steps, STEPS * runs.len(), "each step counted once");
        judge_journal(sql);
    }
}

/// Judges the rows: no gap in a history, and no right to write of a node that was ended.
fn judge_journal(sql: impl Fn(&str) -> String) {
    let none = |what: &str, query: &str| assert_eq!(sql(query).trim(), "0", "{what}");
    none(
        "histories with a gap",
        "SELECT count(*) FROM moonswarm.runs r WHERE r.seq <>
             (SELECT count(*) FROM moonswarm.journal j WHERE j.run = r.num) OR r.seq <>
             (SELECT max(seq) - min(seq) + 1 FROM moonswarm.journal j WHERE j.run = r.num)",
    );
    none(
        "entries of no run",
        "SELECT count(*) FROM moonswarm.journal j
         WHERE NOT EXISTS (SELECT FROM moonswarm.runs r WHERE r.num = j.run)",
    );
    none(
        "lanes of ended nodes",
        "SELECT count(*) FROM moonswarm.lanes l JOIN moonswarm.nodes n USING (node)
         WHERE n.state = 'gone'",
    );
    none("messages that nobody took", "SELECT count(*) FROM moonswarm.outbox");
}

fn start(node: &Daemon, key: &str) -> RequestBuilder {
    node.post("/v1/runs", &json!({ "source": COUNTED })).header("idempotency-key", key)
}

async fn call(shared: Arc<Shared>, caller: usize) {
    let mut turns = caller;
    for number in 0.. {
        if shared.stops.load(Ordering::SeqCst) {
            return;
        }
        shared.begun.fetch_add(1, Ordering::SeqCst);
        let key = format!("{caller}-{number}");
        loop {
            turns += 1;
            let entrance = {
                let entrances = shared.entrances.lock();
                entrances.get(turns % entrances.len().max(1)).cloned()
            };
            let Some(entrance) = entrance else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            match ask(&entrance, &key).await {
                Ok(run) => {
                    shared.runs.lock().insert(key, run);
                    break;
                }
                Err(why) => {
                    let is_there = |it: &Entrance| it.url == entrance.url;
                    if shared.entrances.lock().iter().any(is_there) {
                        shared.disturbed.lock().push(format!("{}: {why}", entrance.name));
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(entrance: &Entrance, key: &str) -> Result<String, String> {
    let node = Daemon::of(&entrance.url, &entrance.token);
    let answer = start(&node, key).send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let view: Value = answer.json().await.map_err(|error| error.to_string())?;
    match status.is_success() {
        true => Ok(view["id"].as_str().unwrap().to_owned()),
        false => Err(format!("{status} {}", view["code"])),
    }
}
