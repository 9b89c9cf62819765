//! Sessions: what a connected one costs, how soon a spawn is its frame, how fast it goes round.

use std::{
    cell::{Cell, RefCell},
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::{Value, json as object};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::{
    client::{Client, json},
    daemon::Daemon,
    drive,
};

/// The number of sessions that have a task while spawns are timed.
const WORKING: usize = 500;
/// The number of sessions that work at the same time.
const AT_ONCE: usize = 64;
/// The number of steps of a run.
const ROUNDS: usize = 500;
/// The number of connections that open sessions.
const OPENERS: usize = 16;
/// The maximum time until a message comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The read buffer of a socket, in bytes. It is small, since one client stands for many machines.
const BUFFER: usize = 4 << 10;

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "rounds",
  agents = { coder = { operator = "main-ai", worker = { subagent_type = "coder" } } },
  flow = function(ctx, input)
    for i = 1, input.rounds do ctx:run("coder", i) end
    return input.rounds
  end,
}"#;

/// The figures of this load. A round is a frame of a task, its result over HTTP, and the next frame.
#[derive(Serialize)]
pub struct Sessions {
    /// The number of sessions that are connected at the same time.
    pub connected: usize,
    /// The resident memory of the daemon for each session.
    pub bytes_each: Option<f64>,
    /// The number of sessions that have a task while spawns are timed.
    pub working: usize,
    /// The median time from the request that starts a run to the frame of its task.
    pub spawn_p50_ms: f64,
    /// The 99th percentile of these times.
    pub spawn_p99_ms: f64,
    /// The median time of a round of one session alone.
    pub round_p50_ms: f64,
    /// The 99th percentile of the times of these rounds.
    pub round_p99_ms: f64,
    /// The number of sessions that work at the same time.
    pub at_once: usize,
    /// The rounds a second of these sessions together.
    pub rounds_per_second: f64,
}

/// Opens so many sessions, and works with some of them.
pub async fn measure(binary: &Path, dir: &Path, many: usize, time: Duration) -> Result<Sessions> {
    let many = many.max(AT_ONCE + 2);
    allow_files(many)?;
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    json(client.send("PUT", "/v1/blueprints/rounds", &publish()).await?).context("publish")?;
    let before = daemon.rss();
    let mut sessions = open(&daemon, many).await?;
    let bytes_each = before
        .zip(daemon.rss())
        .map(|(before, after)| (after as f64 - before as f64) / many as f64);

    let working = WORKING.min(many - AT_ONCE - 1);
    for session in &mut sessions[many - working..] {
        start(&mut client, &session.id, 1).await?;
        session.spawn().await?;
    }
    let mut spawns = Vec::new();
    let (began, session) = (Instant::now(), &mut sessions[0]);
    while spawns.len() < 100 || began.elapsed() < time {
        let sent = Instant::now();
        start(&mut client, &session.id, 1).await?;
        let handle = session.spawn().await?;
        spawns.push(sent.elapsed());
        report(&mut client, &handle).await?;
    }

    let mut rounds = Vec::new();
    let (began, session) = (Instant::now(), &mut sessions[0]);
    while began.elapsed() < time {
        start(&mut client, &session.id, ROUNDS).await?;
        let mut handle = session.spawn().await?;
        for _ in 1..ROUNDS {
            let sent = Instant::now();
            report(&mut client, &handle).await?;
            handle = session.spawn().await?;
            rounds.push(sent.elapsed());
        }
        report(&mut client, &handle).await?;
    }
    let rounds_per_second = at_once(&daemon, sessions.drain(1..=AT_ONCE).collect(), time).await?;
    let (spawns, rounds) = (drive::sorted(spawns), drive::sorted(rounds));
    Ok(Sessions {
        connected: many,
        bytes_each,
        working,
        spawn_p50_ms: spawns[spawns.len() / 2],
        spawn_p99_ms: spawns[spawns.len() * 99 / 100],
        round_p50_ms: rounds[rounds.len() / 2],
        round_p99_ms: rounds[rounds.len() * 99 / 100],
        at_once: AT_ONCE,
        rounds_per_second,
    })
}

fn publish() -> String {
    object!({ "source": BLUEPRINT }).to_string()
}

/// A socket of each session is a file of this process, and one of the daemon, which sees to it
/// itself.
pub fn allow_files(many: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .context("allow this process more files")?;
    let needed = many as u64 + 256;
    ensure!(
        limit.maximum.is_none_or(|files| files >= needed),
        "{many} sessions need {needed} open files; `ulimit -Hn` allows {:?}",
        limit.maximum
    );
    Ok(())
}

/// One that is connected.
struct Session {
    id: String,
    socket: WebSocketStream<TcpStream>,
}

impl Session {
    async fn open(client: &mut Client, address: &str) -> Result<Self> {
        let path = "/v1/operators/main-ai/sessions";
        let opened = json(client.send("POST", path, "{}").await?).context("open a session")?;
        let text = |name: &str| opened[name].as_str().context("a session").map(str::to_owned);
        let (id, token, path) = (text("session")?, text("token")?, text("ws")?);
        let mut request = format!("ws://{address}{path}").into_client_request()?;
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse()?);
        let stream = TcpStream::connect(address).await.context("connect")?;
        stream.set_nodelay(true)?;
        let config = tokio_tungstenite::tungstenite::protocol::WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(0);
        let (socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
        let mut session = Self { id, socket };
        let hello = session.next().await?;
        ensure!(hello["method"] == "hello", "{hello}");
        Ok(session)
    }

    async fn next(&mut self) -> Result<Value> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.context("a message")? {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text)?),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => bail!("the daemon closed a session's socket"),
            }
        }
    }

    /// The next spawn, acknowledged: its handle.
    async fn spawn(&mut self) -> Result<String> {
        loop {
            let frame = self.next().await?;
            ensure!(frame.get("error").is_none(), "{frame}");
            if frame["method"] == "task/spawn" {
                let ack = object!({ "jsonrpc": "2.0", "method": "ack",
                    "params": { "seq": frame["seq"] } });
                self.socket.send(Message::text(ack.to_string())).await?;
                return Ok(frame["params"]["handle"].as_str().context("a handle")?.to_owned());
            }
        }
    }
}

async fn open(daemon: &Daemon, many: usize) -> Result<Vec<Session>> {
    let left = Rc::new(Cell::new(many));
    let opened = Rc::new(RefCell::new(Vec::with_capacity(many)));
    let mut openers = Vec::new();
    for _ in 0..OPENERS {
        let mut client = Client::connect(daemon.address(), daemon.token()).await?;
        let (left, opened) = (Rc::clone(&left), Rc::clone(&opened));
        let address = daemon.address().to_owned();
        openers.push(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                let session = Session::open(&mut client, &address).await?;
                opened.borrow_mut().push(session);
            }
            Ok(())
        });
    }
    drive::together(openers).await?;
    Ok(opened.take())
}

/// Starts a run whose every task is one session's.
async fn start(client: &mut Client, session: &str, rounds: usize) -> Result<()> {
    let body = object!({ "blueprint": "rounds", "delegate": session,
        "input": { "rounds": rounds } });
    json(client.send("POST", "/v1/runs", &body.to_string()).await?).context("start a run")?;
    Ok(())
}

async fn report(client: &mut Client, handle: &str) -> Result<()> {
    let sent = client.send_as(handle, "POST", "/v1/worker/result", r#"{"output":1}"#).await?;
    json(sent).context("report")?;
    Ok(())
}

/// Lets sessions go round, each with a connection for its results, and counts the rounds a second.
async fn at_once(daemon: &Daemon, sessions: Vec<Session>, time: Duration) -> Result<f64> {
    let count = Rc::new(Cell::new(0_u64));
    let mut workers = Vec::new();
    let until = Instant::now() + time;
    for mut session in sessions {
        let mut client = Client::connect(daemon.address(), daemon.token()).await?;
        let count = Rc::clone(&count);
        workers.push(async move {
            while Instant::now() < until {
                start(&mut client, &session.id, ROUNDS).await?;
                for _ in 0..ROUNDS {
                    let handle = session.spawn().await?;
                    if Instant::now() >= until {
                        break;
                    }
                    report(&mut client, &handle).await?;
                    count.set(count.get() + 1);
                }
            }
            Ok(())
        });
    }
    let began = Instant::now();
    drive::together(workers).await?;
    Ok(count.get() as f64 / began.elapsed().as_secs_f64())
}
