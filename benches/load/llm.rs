//! Models: how much later a token is than from the provider itself, whether streams keep their pace,
//! and what a stream costs.
//!
//! The provider is this bench's own, on a thread of its own, and says 50 tokens a second.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use serde::Serialize;
use serde_json::json as object;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep_until, timeout},
};

use crate::{
    client::{Client, find, json},
    daemon::Daemon,
    drive,
};

/// Tokens a second of each stream.
const PACE: u64 = 50;
/// Streams that are watched at the same time.
const WATCHED: usize = 64;
/// What each token is: a byte that nothing else in a stream has.
const TOKEN: u8 = b'~';
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "talk",
  agents = {
    w = { operator = "mock", prompt = "Go on." },
    brief = { operator = "mock", prompt = "Go on.", model = "brief" },
  },
  flow = function(ctx, input)
    ctx:wait("go")
    ctx:run(input == "brief" and "brief" or "w", { items = swarm.array {} })
    return true
  end,
}"#;

/// What was seen.
#[derive(Serialize)]
pub struct Llm {
    /// From the request to the first token, from the provider itself; half took no longer.
    pub direct_p50_ms: f64,
    /// From the signal that lets a run ask to its first piece, through the daemon.
    pub through_p50_ms: f64,
    /// 99 of 100 took no longer.
    pub through_p99_ms: f64,
    /// Watched at the same time.
    pub watched: usize,
    /// Tokens a second of the slowest of them.
    pub slowest_pace: f64,
    /// Streams at the same time, for the memory.
    pub streams: usize,
    /// Resident memory of the daemon for each of them, the run included.
    pub bytes_each: Option<f64>,
    /// Of them, how many runs completed.
    pub completed: u64,
}

/// Measures with `streams` at the same time, each `tokens` long.
pub async fn measure(binary: &Path, dir: &Path, streams: usize, time: Duration) -> Result<Llm> {
    crate::sessions::allow_files(streams)?;
    let provider = provider()?;
    fs::create_dir_all(dir)?;
    let config = dir.join("moonswarm.toml");
    let text = format!(
        "[operators.mock]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"m\"\n\
         base_url = \"http://{provider}/v1\"\nallow_hosts = [\"127.0.0.1\"]\n"
    );
    fs::write(&config, text)?;
    let data = dir.join("data");
    let daemon = Daemon::start_with(binary, &data, &[("MOONSWARM_CONFIG", &config)])?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let source = object!({ "source": BLUEPRINT }).to_string();
    json(client.send("PUT", "/v1/blueprints/talk", &source).await?).context("publish")?;

    // One at a time, each answer one token long, over connections that are there already: nothing
    // else is under way on either side.
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    let mut asked = TcpStream::connect(&provider).await?;
    asked.set_nodelay(true)?;
    let began = Instant::now();
    while through.len() < 50 || began.elapsed() < time {
        direct.push(ask(&mut asked).await?);
        through.push(first_piece(&daemon, &mut client).await?);
    }
    let (direct, through) = (drive::sorted(direct), drive::sorted(through));

    let mut watched = Vec::new();
    for _ in 0..WATCHED {
        let run = start(&mut client, "null").await?;
        watched.push((Watch::open(&daemon, &run).await?, run));
    }
    for (_, run) in &watched {
        go(&mut client, run).await?;
    }
    let paces = try_join_all(watched.into_iter().map(|(watch, _)| watch.pace())).await?;
    let slowest_pace = paces.into_iter().fold(f64::INFINITY, f64::min);

    let mut runs = Vec::new();
    for _ in 0..streams {
        runs.push(start(&mut client, "null").await?);
    }
    let (done, before) = (daemon.runs("completed")?, daemon.rss());
    for run in &runs {
        go(&mut client, run).await?;
    }
    // All of them are in the middle of their answers.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let bytes_each = before
        .zip(daemon.rss())
        .map(|(before, after)| (after as f64 - before as f64) / streams as f64);
    let until = Instant::now() + PATIENCE;
    let mut completed = 0;
    while completed < streams as u64 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        completed = daemon.runs("completed")? - done;
    }
    Ok(Llm {
        direct_p50_ms: direct[direct.len() / 2],
        through_p50_ms: through[through.len() / 2],
        through_p99_ms: through[through.len() * 99 / 100],
        watched: WATCHED,
        slowest_pace,
        streams,
        bytes_each,
        completed,
    })
}

async fn start(client: &mut Client, input: &str) -> Result<String> {
    let body = format!(r#"{{"blueprint":"talk","input":{input}}}"#);
    let run = json(client.send("POST", "/v1/runs", &body).await?)?;
    Ok(run["id"].as_str().context("the run's id")?.to_owned())
}

async fn go(client: &mut Client, run: &str) -> Result<()> {
    let path = format!("/v1/runs/{run}/signals/go");
    json(client.send("POST", &path, "null").await?).map(drop)
}

/// From the request to the first token, without a daemon.
async fn ask(provider: &mut TcpStream) -> Result<Duration> {
    let body = r#"{"model":"brief"}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let began = Instant::now();
    provider.write_all(head.as_bytes()).await?;
    first_of(provider, b"\r\n0\r\n\r\n", began).await
}

/// How long the first token took, once everything up to `end` was read.
async fn first_of(stream: &mut TcpStream, end: &[u8], began: Instant) -> Result<Duration> {
    let (mut heard, mut first) = (Vec::new(), None);
    while find(&heard, end).is_none() {
        let read =
            timeout(PATIENCE, stream.read_buf(&mut heard)).await.context("hear it out")??;
        ensure!(read > 0, "the stream ended before its end");
        if first.is_none() && heard.contains(&TOKEN) {
            first = Some(began.elapsed());
        }
    }
    first.context("a token")
}

/// From the signal to the first piece.
async fn first_piece(daemon: &Daemon, client: &mut Client) -> Result<Duration> {
    let run = start(client, r#""brief""#).await?;
    let mut watch = Watch::open(daemon, &run).await?;
    let began = Instant::now();
    go(client, &run).await?;
    first_of(&mut watch.stream, b"run.ended", began).await
}

/// Somebody who listens to a run.
struct Watch {
    stream: TcpStream,
}

impl Watch {
    /// Connects, and waits until the run is listened to.
    async fn open(daemon: &Daemon, run: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(daemon.address()).await?;
        stream.set_nodelay(true)?;
        let request = format!(
            "GET /v1/runs/{run}/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
            daemon.address(),
            daemon.token()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut heard = Vec::new();
        while find(&heard, b"step.scheduled").is_none() {
            ensure!(stream.read_buf(&mut heard).await? > 0, "the daemon closed the stream");
        }
        Ok(Self { stream })
    }

    /// Hears the stream out; the tokens a second between its first and its last.
    async fn pace(mut self) -> Result<f64> {
        let heard = read_until(&mut self.stream, 1).await?;
        let first = Instant::now();
        read_until(&mut self.stream, TOKENS - heard).await?;
        Ok((TOKENS - heard) as f64 / first.elapsed().as_secs_f64())
    }
}

/// Reads until so many tokens came; gives how many did.
async fn read_until(stream: &mut TcpStream, tokens: usize) -> Result<usize> {
    let (mut heard, mut bytes) = (0, vec![0; 16 << 10]);
    while heard < tokens {
        let read = timeout(PATIENCE, stream.read(&mut bytes)).await.context("hear a token")??;
        ensure!(read > 0, "the stream ended before its end");
        heard += bytes[..read].iter().filter(|byte| **byte == TOKEN).count();
    }
    Ok(heard)
}

/// Tokens of an answer.
const TOKENS: usize = 500;

/// Starts the provider; gives its host and port.
fn provider() -> Result<String> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("provider".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            // Whoever started it may be gone.
            let _ = tell.send(listener.local_addr()?.to_string());
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // Who hangs up has heard enough.
                tokio::spawn(async move { drop(say(stream).await) });
            }
            #[expect(unreachable_code, reason = "it says what the block is")]
            Ok::<(), anyhow::Error>(())
        })
    })?;
    told.recv_timeout(PATIENCE).context("start the provider")
}

/// Answers the requests of a connection, one token at a time.
async fn say(mut stream: TcpStream) -> Result<()> {
    let mut heard = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = find(&heard, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&heard[..at]).to_lowercase();
                let length = head.split("content-length: ").nth(1).and_then(|it| it.lines().next());
                let end = at + 4 + length.context("a length")?.trim().parse::<usize>()?;
                if heard.len() >= end {
                    break end;
                }
            }
            if stream.read_buf(&mut heard).await? == 0 {
                bail!("it hung up");
            }
        };
        let tokens = if find(&heard[..end], br#""model":"brief""#).is_some() { 1 } else { TOKENS };
        heard.drain(..end);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        let token = object!({ "choices": [{ "index": 0, "delta": { "content": "~" } }] });
        let token = chunk(&format!("data: {token}\n\n"));
        let began = tokio::time::Instant::now();
        for number in 0..tokens as u64 {
            sleep_until(began + Duration::from_micros(number * 1_000_000 / PACE)).await;
            stream.write_all(&token).await?;
        }
        let last = object!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
        let mut end = chunk(&format!("data: {last}\n\ndata: [DONE]\n\n"));
        end.extend_from_slice(b"0\r\n\r\n");
        stream.write_all(&end).await?;
    }
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}
