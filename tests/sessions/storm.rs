//! Disconnects, duplicate sockets and killed daemons while sessions work: nothing is lost,
//! nothing is accepted twice, and the numbers have no gap.
//!
//! `MOONSWARM_STORM=full` is the long form: 1,000 disconnects during 200 runs of 20 spawns.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::{
    client::{Opened, Socket, blueprint, open},
    support::{Daemon, Dice, PATIENCE, PAUSE, Shell, send},
};

const SESSIONS: usize = 4;

struct Size {
    disconnects: u64,
    runs: usize,
    spawns: usize,
    /// Disconnects between two deaths of the daemon.
    deaths: u64,
}

fn size() -> Size {
    match std::env::var("MOONSWARM_STORM").as_deref() {
        Ok("full") => Size { disconnects: 1_000, runs: 200, spawns: 20, deaths: 50 },
        _ => Size { disconnects: 100, runs: 20, spawns: 10, deaths: 25 },
    }
}

/// What all clients share.
struct Weather {
    /// Where the daemon is now; it moves when it dies.
    url: watch::Receiver<String>,
    disconnects: AtomicU64,
    /// Rings at each disconnect.
    bell: Notify,
    over: AtomicBool,
    /// How often each attempt's result was accepted as the first.
    accepted: Mutex<HashMap<String, u32>>,
}

impl Weather {
    fn over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// One session's client: it remembers what it saw, and loses its connection again and again.
struct Client {
    session: Opened,
    weather: Arc<Weather>,
    dice: Dice,
    /// Every numbered frame, by number.
    seen: BTreeMap<u64, Value>,
    todo: VecDeque<Value>,
    /// A second connection that somebody forgot.
    forgotten: Option<Socket>,
}

impl Client {
    async fn live(mut self) -> BTreeMap<u64, Value> {
        while !self.weather.over() {
            let mut url = self.weather.url.clone();
            let daemon = Daemon::of(&url.borrow_and_update().clone(), &self.session.token);
            let last = self.seen.last_key_value().map(|(seq, _)| *seq);
            // Sometimes it does not say what it saw, and gets some of it again.
            let resume = last.filter(|_| self.dice.roll(4) > 0);
            match self.session.try_connect(&daemon, resume).await {
                Ok(socket) => self.talk(&daemon, socket).await,
                // The next daemon has another address; this one may be there again as well.
                Err((0, _)) => drop(tokio::time::timeout(PAUSE, url.changed()).await),
                Err(refused) => panic!("refused: {refused:?}"),
            }
        }
        self.seen
    }

    /// Works until the connection breaks, by itself or by chance.
    async fn talk(&mut self, daemon: &Daemon, mut socket: Socket) {
        for _ in 0..=self.dice.roll(8) {
            let next = tokio::time::timeout(Duration::from_millis(30), socket.next()).await;
            match next {
                Ok(None) => break,
                Ok(Some(frame)) => self.note(frame),
                Err(_) => {}
            }
            if self.dice.roll(3) == 0 {
                let seq = self.seen.last_key_value().map_or(0, |(seq, _)| *seq);
                socket.notify("ack", json!({"seq": seq})).await;
            }
            if let Some(spawn) = self.todo.pop_front()
                && !self.report(daemon, &mut socket, &spawn).await
            {
                // Whether it was accepted is unknown: it is said again.
                self.todo.push_back(spawn);
            }
        }
        self.weather.disconnects.fetch_add(1, Ordering::AcqRel);
        self.weather.bell.notify_one();
        if self.dice.roll(5) == 0 {
            self.forgotten = Some(socket);
        } else {
            socket.drop_dead();
        }
    }

    fn note(&mut self, frame: Value) {
        let method = frame["method"].as_str().unwrap_or_default().to_owned();
        if !matches!(method.as_str(), "task/spawn" | "task/cancel") {
            return;
        }
        let seq = frame["seq"].as_u64().unwrap();
        match self.seen.insert(seq, frame.clone()) {
            Some(before) => assert_eq!(before, frame, "a number means the same for ever"),
            None if method == "task/spawn" => self.todo.push_back(frame),
            None => {}
        }
    }

    /// Reports a result; false if nobody knows what became of it.
    async fn report(&mut self, daemon: &Daemon, socket: &mut Socket, spawn: &Value) -> bool {
        let params = &spawn["params"];
        let output = json!(params["attempt"].as_u64().map(|_| params["task"].clone()));
        let accepted = if self.dice.roll(2) == 0 {
            let result =
                json!({"task": params["task"], "attempt": params["attempt"], "output": output});
            let Some(answer) = socket.try_call("task/result", result).await else { return false };
            match answer.get("result") {
                Some(result) => result["repeated"] == false,
                None => {
                    let code = answer["error"]["data"]["code"].as_str().unwrap();
                    assert!(code == "already_accepted" || code == "fenced", "{answer}");
                    false
                }
            }
        } else {
            let handle = params["handle"].as_str().unwrap();
            let request = daemon.with(handle, Method::POST, "/v1/worker/result");
            let Ok(answer) = request.json(&json!({"output": output})).send().await else {
                return false;
            };
            let status = answer.status().as_u16();
            let Ok(body) = answer.json::<Value>().await else { return false };
            match status {
                200 => body["repeated"] == false,
                409 => false,
                503 => return false,
                other => panic!("{other}: {body}"),
            }
        };
        if accepted {
            let attempt = format!("{} {}", params["task"], params["attempt"]);
            *self.weather.accepted.lock().unwrap().entry(attempt).or_default() += 1;
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_loses_nothing_and_doubles_nothing() {
    let size = size();
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let (moved, url) = watch::channel(daemon.url.clone());
    let weather = Arc::new(Weather {
        url,
        disconnects: AtomicU64::new(0),
        bell: Notify::new(),
        over: AtomicBool::new(false),
        accepted: Mutex::default(),
    });
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(open(&daemon).await);
    }
    let source = blueprint(&format!(
        r#"local items = {{}}
           for i = 1, {} do items[i] = i end
           return ctx:map(items, function(i) return ctx:run("coder", {{ n = i }}) end)"#,
        size.spawns
    ));
    let mut runs = Vec::new();
    for n in 0..size.runs {
        let seats = json!({"main-ai": sessions[n % SESSIONS].id});
        let (status, view) =
            send(daemon.post("/v1/runs", &json!({"source": source, "seats": seats}))).await;
        assert_eq!(status, 201, "{view}");
        runs.push(view["id"].as_str().unwrap().to_owned());
    }
    let clients: Vec<_> = (1..)
        .zip(&sessions)
        .map(|(n, session)| {
            let client = Client {
                session: session.clone(),
                weather: Arc::clone(&weather),
                dice: Dice(0x9e37_79b9_7f4a_7c15 ^ (n << 20)),
                seen: BTreeMap::new(),
                todo: VecDeque::new(),
                forgotten: None,
            };
            tokio::spawn(client.live())
        })
        .collect();

    let mut next_death = size.deaths;
    let mut deaths = 0;
    let mut ended = 0;
    let began = std::time::Instant::now();
    while ended < runs.len() || weather.disconnects.load(Ordering::Acquire) < size.disconnects {
        assert!(began.elapsed() < Duration::from_secs(1_200), "{ended} of {} ended", runs.len());
        assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a client gave up");
        if weather.disconnects.load(Ordering::Acquire) >= next_death {
            next_death += size.deaths;
            deaths += 1;
            daemon.kill();
            daemon = Daemon::start(&data);
            moved.send(daemon.url.clone()).unwrap();
        }
        while ended < runs.len() {
            let (_, view) = send(daemon.get(&format!("/v1/runs/{}", runs[ended]))).await;
            if view["ended_at"].is_null() {
                break;
            }
            ended += 1;
        }
        tokio::time::timeout(PATIENCE, weather.bell.notified()).await.expect("clients go on");
    }
    weather.over.store(true, Ordering::Release);

    let mut frames = 0;
    for client in clients {
        let seen = client.await.unwrap();
        assert!(seen.keys().copied().eq(1..=seen.len() as u64), "a gap in {:?}", seen.keys());
        frames += seen.len();
    }
    for run in &runs {
        let view = daemon.ended(run).await;
        assert_eq!(view["status"], "completed", "{view}");
        assert_eq!(view["output"].as_array().map(Vec::len), Some(size.spawns), "{view}");
    }
    let accepted = weather.accepted.lock().unwrap();
    assert!(accepted.values().all(|times| *times == 1), "accepted twice");
    let disconnects = weather.disconnects.load(Ordering::Acquire);
    eprintln!(
        "{disconnects} disconnects, {deaths} deaths, {} runs, {frames} frames, {} acceptances heard of, {:?}",
        runs.len(),
        accepted.len(),
        began.elapsed()
    );
    assert!(deaths > 0 && frames >= size.runs * size.spawns);
}
