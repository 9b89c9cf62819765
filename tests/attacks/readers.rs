//! Readers of events, slow or many.

use std::{io::Read as _, net::TcpStream};

use futures::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::support::{Daemon, PATIENCE, Shell, eventually, send, when};

/// A history of 8 MB in 70 steps.
const LARGE: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "large", agents = { echo = { operator = "echo" } },
  flow = function(ctx)
    for n = 1, 70 do ctx:run("echo", { n = n, text = ("x"):rep(60000) }) end
    ctx:on_query("progress", function() return "all of it" end)
    return "over"
  end }"#;

/// A small run that can be asked.
const SMALL: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "small", agents = { echo = { operator = "echo" } },
  flow = function(ctx)
    local done = 0
    ctx:on_query("progress", function() return done end)
    for n = 1, 3 do ctx:run("echo", n) done = n end
    ctx:wait("go")
    return "over"
  end }"#;

async fn large(daemon: &Daemon) -> String {
    let run = daemon.run_source(LARGE, json!({})).await;
    daemon.ended(&run).await;
    run
}

/// A reader that asks for the events of a run and takes the beginning of the first, no more.
fn reads_no_more(daemon: &Daemon, run: &str) -> TcpStream {
    use std::io::Write as _;
    let address = daemon.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = &daemon.token;
    let head = format!(
        "GET /v1/runs/{run}/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("run.started") {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&bytes[..n]);
    }
    stream
}

/// All events of a run, by the stream.
async fn read_all(daemon: &Daemon, run: &str) -> Vec<u64> {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
    events.filter_map(|event| event["seq"].as_u64()).collect()
}

#[tokio::test]
async fn readers_that_do_not_read_hold_a_page_each_and_not_the_history() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = large(&daemon).await;
    assert_eq!(read_all(&daemon, &run).await.len(), 2 + 70);
    let before = daemon.resident();
    let readers: Vec<TcpStream> = (0..150).map(|_| reads_no_more(&daemon, &run)).collect();
    let grown = daemon.resident().saturating_sub(before);
    println!("150 readers that do not read: {} MB", grown >> 20);
    assert!(grown < 100 << 20, "{} MB", grown >> 20);
    // Others are served meanwhile, in full.
    assert_eq!(read_all(&daemon, &run).await.len(), 2 + 70);
    drop(readers);
}

/// A reader that asks for something with a token, and takes the status and no more.
fn takes_the_status(daemon: &Daemon, token: &str, path: &str) -> (TcpStream, String) {
    use std::io::Write as _;
    let address = daemon.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    (stream, String::from_utf8_lossy(&status[9..]).into_owned())
}

#[tokio::test]
async fn answers_that_nobody_takes_have_a_share_of_the_memory() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(SMALL, json!({})).await;
    let put = format!("/v1/runs/{run}/artifacts?name=large");
    let put = daemon.with(&daemon.token, Method::POST, &put).body(vec![b'x'; 8 << 20]);
    let (status, file) = send(put).await;
    assert_eq!(status, 200, "{file}");
    let path = format!("/v1/artifacts/{}", file["id"].as_str().unwrap());
    let slow = json!({ "role": "observer", "ttl": "1h" });
    let (_, slow) = send(daemon.post("/v1/tokens", &slow)).await;
    let slow = slow["token"].as_str().unwrap();
    // A quarter of 512 MiB is sixteen of them.
    let readers: Vec<_> = (0..24).map(|_| takes_the_status(&daemon, slow, &path)).collect();
    let served = readers.iter().filter(|(_, status)| status == "200").count();
    assert!((16..24).contains(&served), "{served} of 24");
    assert_eq!(readers[23].1, "429");
    // Others are served meanwhile, and so is what is small.
    assert_eq!(send(daemon.get(&path)).await.0, 200);
    assert_eq!(send(daemon.with(slow, Method::GET, "/v1/runs")).await.0, 200);
    drop(readers);
    eventually("the share comes back", async || {
        let (status, _) = send(daemon.with(slow, Method::GET, &path)).await;
        when(status == 200, status)
    })
    .await;
}

#[tokio::test]
async fn three_hundred_subscriptions_of_a_large_history_cost_little() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = large(&daemon).await;
    let before = daemon.resident();
    let mut sockets = Vec::new();
    for _ in 0..10 {
        sockets.push(watching(&daemon, &run, 30).await);
    }
    let grown = daemon.resident().saturating_sub(before);
    println!("10 sockets x 30 subscriptions: {} MB", grown >> 20);
    assert!(grown < 150 << 20, "{} MB", grown >> 20);
    // One that reads takes all of it meanwhile: nothing is missing.
    let mut reads = watching(&daemon, &run, 1).await;
    let mut last = 1;
    while last < 72 {
        let said = heard(&mut reads).await;
        if said["method"] == "event" {
            last += 1;
            assert_eq!(said["params"]["event"]["seq"], last, "{said}");
        }
    }
    drop(sockets);
}

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn heard(socket: &mut Socket) -> Value {
    loop {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await.expect("nothing came");
        if let Message::Text(text) = message.expect("it is open").unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// A session that subscribed to a run so many times, and was sent the first event of each.
async fn watching(daemon: &Daemon, run: &str, times: usize) -> Socket {
    let (status, opened) = send(daemon.post("/v1/operators/main-ai/sessions", &json!({}))).await;
    assert_eq!(status, 201, "{opened}");
    let url = format!("{}{}", daemon.url.replacen("http", "ws", 1), opened["ws"].as_str().unwrap());
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {}", opened["token"].as_str().unwrap()).parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    for id in 0..times {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "run/subscribe",
            "params": {"run": run}});
        socket.send(Message::text(call.to_string())).await.unwrap();
    }
    let mut begun = 0;
    while begun < times {
        let said = heard(&mut socket).await;
        assert!(said.get("error").is_none(), "{said}");
        begun += usize::from(said["params"]["event"]["seq"] == 1);
    }
    socket
}

#[tokio::test]
async fn a_run_answers_queries_after_its_events_were_streamed() {
    let shell = Shell::new();
    // With an audit log as well, where each step takes a moment longer.
    shell.write("audit.toml", "[[middleware]]\nkind = \"audit\"\n");
    let config = shell.path("audit.toml");
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    let progress = |run: &str| send(daemon.get(&format!("/v1/runs/{run}/query/progress")));
    // Watched while it ends, by one that reads and one that does not.
    let run = daemon.run_source(SMALL, json!({})).await;
    daemon.waits(&run, "signal").await;
    let idle = reads_no_more(&daemon, &run);
    let watched = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let (status, said) = send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
    assert!(status < 300, "{status} {said}");
    let text = watched.text().await.unwrap();
    assert!(text.contains("run.ended"), "{text}");
    let (status, answer) = progress(&run).await;
    assert_eq!((status, &answer), (200, &json!(3)), "{answer}");
    // And after its end, from the store.
    for _ in 0..3 {
        assert!(read_all(&daemon, &run).await.len() > 5);
        let (status, answer) = progress(&run).await;
        assert_eq!((status, &answer), (200, &json!(3)), "{answer}");
    }
    drop(idle);
}

/// Ten tasks for people, each with an input of 1 MB.
const ASKS: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks", agents = { ask = { operator = "human", prompt = "Look." } },
  flow = function(ctx)
    local all = {}
    for n = 1, 10 do
      all[n] = function()
        -- Each in a turn of its own: a flow may compute for a short time at once.
        ctx:sleep("1ms")
        return ctx:run("ask", { n = n, text = ("x"):rep(1000000) })
      end
    end
    return #ctx:all(all)
  end }"#;

#[tokio::test]
async fn lists_of_tasks_hold_few_of_their_inputs_at_a_time() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for _ in 0..20 {
        daemon.run_source(ASKS, json!({})).await;
    }
    let listed = async |path: &str| send(daemon.get(path)).await;
    eventually("all tasks are open", async || {
        let open = listed("/v1/tasks?limit=200").await.1["items"].as_array().map_or(0, Vec::len);
        let paused = listed("/v1/runs?status=paused,failed&limit=1").await.1;
        if open == 200 { Ok(()) } else { Err(format!("{open}; {}", paused["items"][0])) }
    })
    .await;
    let before = daemon.resident();
    for path in
        ["/v1/tasks?limit=200", "/v1/tasks?limit=200&mine=true", "/v1/tasks?limit=200&q=ask"]
    {
        let many = futures::future::join_all((0..10).map(|_| listed(path))).await;
        for (status, page) in many {
            assert_eq!((status, page["items"].as_array().unwrap().len()), (200, 200), "{path}");
        }
    }
    let grown = daemon.resident().saturating_sub(before);
    println!("lists of 200 tasks with inputs of 1 MB: {} MB", grown >> 20);
    assert!(grown < 200 << 20, "{} MB", grown >> 20);
    // Pages go on where the one before ended.
    let mut path = "/v1/tasks?limit=30".to_owned();
    let mut ids = std::collections::BTreeSet::new();
    loop {
        let page = listed(&path).await.1;
        ids.extend(page["items"].as_array().unwrap().iter().map(|it| it["id"].to_string()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/tasks?limit=30&cursor={cursor}");
    }
    assert_eq!(ids.len(), 200);
}
