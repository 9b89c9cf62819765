//! Credentials: tokens, handles, idempotency keys, and the keys behind them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use moonswarm::token::{Claims, Grant, KeyRing, Role, Scopes, SigningKey, TokenKind};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, PATIENCE, Shell, eventually, refusal, send, when};

/// One task in the queue `q`; its result is the run's.
const QUEUED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued",
  agents = { work = { operator = "queue", queue = "q" } },
  flow = function(ctx, input) return ctx:run("work", input) end,
}
"#;

/// A handle of the right form that nobody gave out.
fn forged(run: u8) -> String {
    let mut bytes = vec![run, 1, 1, 1];
    bytes.extend([7; 24]);
    format!("wh_{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

async fn begin(daemon: &Daemon) -> String {
    let start = json!({ "source": QUEUED, "input": { "n": 1 } });
    let (status, run) = send(daemon.post("/v1/runs", &start)).await;
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().unwrap().to_owned()
}

async fn lease(daemon: &Daemon) -> String {
    let (_, leased) =
        send(daemon.post("/v1/worker/lease", &json!({ "queue": "q", "wait": "20s" }))).await;
    leased[0]["handle"].as_str().unwrap_or_else(|| panic!("{leased}")).to_owned()
}

async fn prompt(daemon: &Daemon, bearer: &str) -> u16 {
    send(daemon.with(bearer, Method::GET, "/v1/worker/prompt")).await.0
}

async fn report(daemon: &Daemon, bearer: &str, output: &str) -> (u16, Value) {
    let post = daemon.with(bearer, Method::POST, "/v1/worker/result");
    send(post.json(&json!({ "output": output }))).await
}

async fn mint(daemon: &Daemon, by: &str, body: Value, key: Option<&str>) -> (u16, Value) {
    let mut post = daemon.with(by, Method::POST, "/v1/tokens").json(&body);
    if let Some(key) = key {
        post = post.header("Idempotency-Key", key);
    }
    send(post).await
}

async fn minted(daemon: &Daemon, by: &str, body: Value) -> String {
    let (status, made) = mint(daemon, by, body, None).await;
    assert_eq!(status, 201, "{made}");
    made["token"].as_str().unwrap().to_owned()
}

/// The head of a request whose body of `length` bytes is still to come.
fn head(daemon: &Daemon, path: &str, bearer: &str, length: usize) -> String {
    let host = daemon.url.strip_prefix("http://").unwrap();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {bearer}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[tokio::test]
async fn a_key_does_not_give_a_wider_tokens_answer_to_a_narrower_one_of_its_name() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let of = |scopes: Value, ttl: &str| json!({ "role": "operator", "name": "ci", "scopes": scopes, "ttl": ttl });
    let wide = minted(&daemon, &daemon.token, of(json!(["*"]), "2h")).await;
    let narrow = minted(&daemon, &daemon.token, of(json!(["run:*", "operator:*"]), "2h")).await;
    let renewed = minted(&daemon, &daemon.token, of(json!(["*"]), "3h")).await;
    let ask = json!({ "role": "operator", "ttl": "1h" });
    let (status, made) = mint(&daemon, &wide, ask.clone(), Some("mint-1")).await;
    assert_eq!(status, 201, "{made}");
    let count = async || send(daemon.get("/v1/tokens")).await.1["items"].as_array().unwrap().len();
    let before = count().await;
    let (status, refused) = mint(&daemon, &narrow, ask.clone(), Some("mint-1")).await;
    assert_eq!((status, &refused["code"]), (409, &json!("repeat_widens")), "{refused}");
    assert!(refused["token"].is_null());
    let (status, again) = mint(&daemon, &renewed, ask, Some("mint-1")).await;
    assert_eq!((status, &again["jti"]), (201, &made["jti"]), "a renewed token repeats harmlessly");
    assert_eq!(count().await, before, "nothing was made");

    let open = |by: &str| {
        let post = daemon.with(by, Method::POST, "/v1/operators/main-ai/sessions");
        post.header("Idempotency-Key", "open-1").json(&json!({}))
    };
    let (status, opened) = send(open(&wide)).await;
    assert_eq!(status, 201, "{opened}");
    assert_eq!(refusal(open(&narrow)).await, (409, "repeat_widens".to_owned()));
    assert_eq!(send(open(&renewed)).await.1["session"], opened["session"]);
}

#[tokio::test]
async fn two_tokens_without_a_name_share_no_keys() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let unnamed = json!({ "role": "operator", "ttl": "2h" });
    let one = minted(&daemon, &daemon.token, unnamed.clone()).await;
    let two = minted(&daemon, &daemon.token, unnamed.clone()).await;
    let ask = json!({ "role": "operator", "ttl": "1h" });
    let (_, first) = mint(&daemon, &one, ask.clone(), Some("k1")).await;
    let (status, second) = mint(&daemon, &two, ask, Some("k1")).await;
    assert_eq!(status, 201, "{second}");
    assert_ne!(first["jti"], second["jti"]);
}

#[tokio::test]
async fn a_forged_handle_makes_the_host_buffer_nothing() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    begin(&daemon).await;
    const BODY: usize = 8 << 20;
    let before = daemon.resident();
    let piece = vec![b' '; 64 << 10];
    let mut streams = Vec::new();
    for n in 0..60 {
        let mut stream = connect(&daemon);
        stream.write_all(head(&daemon, "/v1/worker/result", &forged(n), BODY).as_bytes()).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        // As much as the host takes; the last byte never comes.
        let mut left = BODY - 1;
        while left > 0 {
            match stream.write(&piece[..left.min(piece.len())]) {
                Ok(n) => left -= n,
                Err(_) => break,
            }
        }
        streams.push(stream);
    }
    let grown = daemon.resident().saturating_sub(before);
    assert!(grown < 48 << 20, "the host took {grown} bytes for strangers");
    assert_eq!(send(daemon.get("/v1/runs")).await.0, 200);
    drop(streams);
}

#[tokio::test]
async fn forged_handles_do_not_use_up_the_rate_of_the_worker() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = begin(&daemon).await;
    let handle = lease(&daemon).await;
    // More than a token may ask at once.
    let flood = head(&daemon, "/v1/worker/heartbeat", &forged(1), 0).repeat(3_500);
    let floods: Vec<_> = (0..4)
        .map(|_| {
            let (mut stream, flood) = (connect(&daemon), flood.clone());
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                let reading = std::thread::spawn(move || {
                    let (mut piece, mut text, mut seen) = ([0; 65_536], Vec::new(), 0);
                    while seen < 3_500 {
                        let n = reader.read(&mut piece).unwrap();
                        assert!(n > 0, "the host hung up after {seen} answers");
                        text.extend_from_slice(&piece[..n]);
                        seen += count(&text, REFUSED);
                        // One that is cut in two is counted with the next piece.
                        text.drain(..text.len().saturating_sub(REFUSED.len() - 1));
                    }
                });
                stream.write_all(flood.as_bytes()).unwrap();
                reading.join().unwrap();
            })
        })
        .collect();
    let beat = || daemon.with(&handle, Method::POST, "/v1/worker/heartbeat");
    for _ in 0..20 {
        assert_eq!(send(beat()).await.0, 200);
    }
    tokio::task::spawn_blocking(|| floods.into_iter().for_each(|flood| flood.join().unwrap()))
        .await
        .unwrap();
    assert_eq!(send(beat()).await.0, 200);
    assert_eq!(report(&daemon, &handle, "mine").await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "mine");
}

/// How an answer to a stranger begins.
const REFUSED: &[u8] = b"HTTP/1.1 401";

/// How often a text stands in some bytes.
fn count(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).filter(|window| *window == text).count()
}

#[tokio::test]
async fn slow_bodies_of_one_token_keep_nobody_else_out() {
    let shell = Shell::new();
    let flags = ["--connections", "256"].map(std::ffi::OsStr::new);
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    let named = |name: &str| json!({ "role": "operator", "name": name, "ttl": "1h" });
    let slow = minted(&daemon, &daemon.token, named("slow")).await;
    let other = minted(&daemon, &daemon.token, named("other")).await;
    let start = head(&daemon, "/v1/runs", &slow, 1_000);
    // Half of all connections carry requests, and a quarter of those may be one token's: 32. A look
    // takes a place as well, and each that finds one is followed by one more slow request.
    let slow_request = || {
        let mut stream = connect(&daemon);
        stream.write_all(start.as_bytes()).unwrap();
        stream
    };
    let mut held: Vec<_> = (0..32).map(|_| slow_request()).collect();
    let refused = async || send(daemon.with(&slow, Method::GET, "/v1/runs")).await;
    let (status, body) = eventually("the refusal of another request", async || {
        let (status, body) = refused().await;
        if status != 200 {
            return Ok((status, body));
        }
        held.push(slow_request());
        Err(body)
    })
    .await;
    assert_eq!((status, &body["code"]), (429, &json!("busy")), "{body}");
    for bearer in [&other, &daemon.token] {
        assert_eq!(send(daemon.with(bearer, Method::GET, "/v1/runs")).await.0, 200);
    }
    assert_eq!(send(daemon.bare(Method::GET, "/healthz")).await.0, 200);
    drop(held);
    eventually("the places come back", async || {
        let (status, body) = refused().await;
        when(status == 200, body)
    })
    .await;
}

#[tokio::test]
async fn the_bodies_of_one_token_have_a_share_of_the_memory() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let named = json!({ "role": "operator", "name": "big", "ttl": "1h" });
    let big = minted(&daemon, &daemon.token, named).await;
    const BODY: usize = 8 << 20;
    let before = daemon.resident();
    let body = vec![b' '; BODY - 1];
    let sending: Vec<_> = (0..24)
        .map(|_| {
            let (mut stream, body) = (connect(&daemon), body.clone());
            let start = head(&daemon, "/v1/runs", &big, BODY);
            std::thread::spawn(move || {
                stream.write_all(start.as_bytes()).unwrap();
                // Whoever is refused cannot send the rest; whoever is not waits for the last byte.
                let _ = stream.write_all(&body);
                stream
            })
        })
        .collect();
    let held: Vec<_> = sending.into_iter().map(|sending| sending.join().unwrap()).collect();
    let grown = daemon.resident().saturating_sub(before);
    // 64 MiB, in buffers that grow by doubling.
    assert!(grown < 160 << 20, "24 bodies of 8 MiB made it take {grown} bytes");
    assert_eq!(send(daemon.get("/v1/runs")).await.0, 200);
    drop(held);
}

/// A run whose events come when it is signaled.
const LISTENER: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "listener",
  flow = function(ctx) for _ = 1, 3 do ctx:wait("go") end end,
}
"#;

#[tokio::test]
async fn a_stream_of_events_ends_with_the_token_that_it_was_opened_with() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let start = json!({ "source": LISTENER });
    let (status, run) = send(daemon.post("/v1/runs", &start)).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap().to_owned();
    let ask = json!({ "role": "observer", "ttl": "1h" });
    let (_, made) = send(daemon.post("/v1/tokens", &ask)).await;
    let (watcher, jti) = (made["token"].as_str().unwrap(), made["jti"].as_str().unwrap());
    let kept = minted(&daemon, &daemon.token, ask.clone()).await;
    let open = async |bearer: &str| {
        let path = format!("/v1/runs/{run}/events?starting_after=0");
        let stream = daemon.with(bearer, Method::GET, &path).send().await.unwrap();
        assert_eq!(stream.status(), 200);
        stream
    };
    let signal = async |bearer: &str| {
        let path = format!("/v1/runs/{run}/signals/go");
        let (status, said) = send(daemon.with(bearer, Method::POST, &path).json(&json!({}))).await;
        assert!(status < 300, "{said}");
    };
    // Reads until a number of signals was seen, or the stream ends; says whether it was seen.
    let sees = async |stream: &mut reqwest::Response, text: &mut String, count: usize| loop {
        if text.matches("event: signal\n").count() >= count {
            return true;
        }
        match tokio::time::timeout(PATIENCE, stream.chunk()).await.expect("it ends or goes on") {
            Ok(Some(piece)) => text.push_str(&String::from_utf8_lossy(&piece)),
            Ok(None) | Err(_) => return false,
        }
    };
    let (mut theirs, mut ours) = (open(watcher).await, open(&kept).await);
    let (mut they, mut we) = (String::new(), String::new());
    signal(&daemon.token).await;
    assert!(sees(&mut theirs, &mut they, 1).await && sees(&mut ours, &mut we, 1).await);
    assert_eq!(send(daemon.delete(&format!("/v1/tokens/{jti}"))).await.0, 204);
    signal(&daemon.token).await;
    assert!(!sees(&mut theirs, &mut they, 2).await, "{they}");
    assert!(sees(&mut ours, &mut we, 2).await, "{we}");
    let rotate =
        ["key", "rotate", "--now", "--json", "--server", &daemon.url, "--token", &daemon.token];
    shell.run(&rotate).ok();
    signal(&admin_token(&data)).await;
    assert!(!sees(&mut ours, &mut we, 3).await, "{we}");
}

/// A copy of a stopped data directory, as `cp -r` makes it.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-rp").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[tokio::test]
async fn a_handle_of_a_history_that_was_rolled_back_is_good_for_nothing() {
    let shell = Shell::new();
    let (data, snapshot) = (shell.path("data"), shell.path("snapshot"));
    let daemon = Daemon::start(&data);
    for _ in 0..3 {
        daemon
            .run_source(
                r#"return require("swarm").blueprint { name = "e", flow = function() return 1 end }"#,
                json!({}),
            )
            .await;
    }
    assert_eq!(daemon.stop(), Some(0));
    copy(&data, &snapshot);
    let daemon = Daemon::start(&data);
    begin(&daemon).await;
    let zombie = lease(&daemon).await;
    let (_, made) =
        send(daemon.with(&zombie, Method::POST, "/v1/worker/token").json(&json!({}))).await;
    let zombie_token = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    daemon.kill();
    fs::remove_dir_all(&data).unwrap();
    copy(&snapshot, &data);

    let daemon = Daemon::start(&data);
    let run = begin(&daemon).await;
    let handle = lease(&daemon).await;
    assert_ne!(handle, zombie);
    for bearer in [&zombie, &zombie_token] {
        assert_eq!(prompt(&daemon, bearer).await, 401);
        let (status, refused) = report(&daemon, bearer, "of another life").await;
        assert_eq!((status, &refused["code"]), (401, &json!("unauthenticated")), "{refused}");
    }
    assert_eq!(report(&daemon, &handle, "of this life").await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "of this life");
}

#[tokio::test]
async fn a_token_from_before_the_clock_was_set_back_is_good() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let pem = fs::read(data.join("signing.key")).unwrap();
    let ring = KeyRing::new(SigningKey::from_pem(&pem).unwrap());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let grant = Grant::new(Role::Observer, Scopes::all());
    let made = |at_s| Claims::new(TokenKind::Api, "ann", "jti", grant.clone(), at_s, 600);
    let ahead = ring.sign(&made(now_s + 3_600)).unwrap();
    assert_eq!(send(daemon.with(&ahead, Method::GET, "/v1/runs")).await.0, 200);
    let over = ring.sign(&made(now_s - 3_600)).unwrap();
    assert_eq!(send(daemon.with(&over, Method::GET, "/v1/runs")).await.0, 401);
}

async fn keys(daemon: &Daemon) -> usize {
    let (_, set) = send(daemon.get("/.well-known/jwks.json")).await;
    set["keys"].as_array().unwrap().len()
}

fn admin_token(data: &Path) -> String {
    fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned()
}

#[tokio::test]
async fn keys_that_were_rotated_are_good_for_their_grace_over_restarts_and_leaked_ones_at_once_not()
{
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let run = begin(&daemon).await;
    let old_handle = lease(&daemon).await;
    let old = daemon.token.clone();
    let reads = async |daemon: &Daemon, token: &str| {
        send(daemon.with(token, Method::GET, "/v1/runs")).await.0
    };
    let rotate = |daemon: &Daemon, flags: &[&str]| {
        let mut args = vec!["key", "rotate", "--json", "--server", &daemon.url];
        args.extend(["--token", &daemon.token]);
        args.extend(flags);
        shell.run(&args).ok().json()
    };
    let rotated = rotate(&daemon, &["--grace", "2h"]);
    let new = admin_token(&data);
    assert_ne!(new, old, "the owner has a token of the new key");
    let resigned = rotated["token"].as_str().unwrap().to_owned();
    for token in [&old, &new, &resigned] {
        assert_eq!(reads(&daemon, token).await, 200);
    }
    assert_eq!((keys(&daemon).await, prompt(&daemon, &old_handle).await), (2, 200));
    assert_eq!(daemon.stop(), Some(0));

    daemon = Daemon::start(&data);
    assert_eq!(daemon.token, new, "a start keeps it");
    assert_eq!((reads(&daemon, &old).await, keys(&daemon).await), (200, 2));
    assert_eq!(prompt(&daemon, &old_handle).await, 200);

    let leaked = daemon.token.clone();
    let rotated = rotate(&daemon, &["--now"]);
    let (resigned, owner) = (rotated["token"].as_str().unwrap(), admin_token(&data));
    for token in [&old, &new, &leaked] {
        assert_eq!(reads(&daemon, token).await, 401, "refused when the verb returns");
    }
    assert_eq!(prompt(&daemon, &old_handle).await, 401);
    for token in [resigned, &owner] {
        assert_eq!(reads(&daemon, token).await, 200);
    }
    daemon.token = owner;
    assert_eq!(keys(&daemon).await, 1);
    assert_eq!(daemon.stop(), Some(0));

    daemon = Daemon::start(&data);
    assert_eq!(reads(&daemon, &old).await, 401);
    assert_eq!(prompt(&daemon, &old_handle).await, 401);
    assert_eq!(reads(&daemon, resigned).await, 200);
    assert!(send(daemon.get(&format!("/v1/runs/{run}"))).await.1["ended_at"].is_null());
    let narrow = minted(&daemon, &daemon.token, json!({ "role": "operator", "ttl": "1h" })).await;
    let post = daemon.with(&narrow, Method::POST, "/v1/keys/rotate");
    assert_eq!(refusal(post).await, (403, "forbidden_verb".to_owned()));
}

/// A host that dies within a rotation has the keys of before or those after, and its owner is not
/// locked out.
#[tokio::test]
async fn a_rotation_that_is_killed_half_way_locks_nobody_out() {
    let places = ["engine.key_rotate#1", "host.key_kept#1", "host.key_kept#2", "host.key_kept#3"];
    for at in places.into_iter().chain(["engine.key_rotated#1"]) {
        for now in [false, true] {
            let shell = Shell::new();
            let data = shell.path("data");
            let daemon = Daemon::launch(&data, &[("MOONSWARM_KILL_AT", at)]).unwrap();
            let old = daemon.token.clone();
            let post = daemon.post("/v1/keys/rotate", &json!({ "now": now }));
            assert!(post.send().await.is_err(), "{at}");
            assert!(daemon.died(), "{at}");
            let daemon = Daemon::start(&data);
            assert_eq!(send(daemon.get("/v1/runs")).await.0, 200, "{at}");
            let with_old = send(daemon.with(&old, Method::GET, "/v1/runs")).await.0;
            let kept = !now || at == "engine.key_rotate#1" || at == "host.key_kept#1";
            assert_eq!(with_old, if kept { 200 } else { 401 }, "{at} {now}");
        }
    }
}

#[tokio::test]
async fn revoking_a_workers_token_ends_what_it_became_and_what_was_made_from_it() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    begin(&daemon).await;
    let handle = lease(&daemon).await;
    let token = async |by: &str| {
        let post = daemon.with(by, Method::POST, "/v1/worker/token");
        let (status, made) = send(post.json(&json!({}))).await;
        assert_eq!(status, 201, "{made}");
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("token"), text("jti"))
    };
    let (sibling, _) = token(&handle).await;
    let (first, jti) = token(&handle).await;
    let (child, _) = token(&first).await;
    let (grandchild, _) = token(&child).await;
    let (_, beat) = send(daemon.with(&first, Method::POST, "/v1/worker/heartbeat")).await;
    let renewed = beat["token"].as_str().unwrap_or_else(|| panic!("{beat}")).to_owned();
    let (_, beat) = send(daemon.with(&renewed, Method::POST, "/v1/worker/heartbeat")).await;
    let renewed_again = beat["token"].as_str().unwrap().to_owned();
    let family = [&first, &child, &grandchild, &renewed, &renewed_again];
    for bearer in family {
        assert_eq!(prompt(&daemon, bearer).await, 200);
    }
    assert_eq!(send(daemon.delete(&format!("/v1/tokens/{jti}"))).await.0, 204);
    for unknown in ["0123456789abcdef0123456789abcdef", "wt_0", "wt_x.y"] {
        assert_eq!(send(daemon.delete(&format!("/v1/tokens/{unknown}"))).await.0, 404, "{unknown}");
    }
    let refused = async |daemon: &Daemon| {
        for bearer in family {
            let get = daemon.with(bearer, Method::GET, "/v1/worker/prompt");
            assert_eq!(refusal(get).await, (401, "token_revoked".to_owned()));
        }
        for bearer in [&sibling, &handle] {
            assert_eq!(prompt(daemon, bearer).await, 200, "others of the attempt are not touched");
        }
    };
    refused(&daemon).await;
    assert_eq!(daemon.stop(), Some(0));
    refused(&Daemon::start(&data)).await;
}
