//! Sessions whose tokens are revoked while nothing can be stored.

use futures::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::{
    shim::Shim,
    support::{Daemon, PATIENCE, Shell, eventually, needs_sqlite, refusal, send, when},
};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "waits", flow = function(ctx) ctx:wait("go") end }
"#;

/// An open session.
struct Opened {
    path: String,
    token: String,
    /// The id of its token.
    jti: String,
}

impl Opened {
    async fn new(daemon: &Daemon) -> Self {
        let (status, opened) =
            send(daemon.post("/v1/operators/main-ai/sessions", &json!({}))).await;
        assert_eq!(status, 201, "{opened}");
        let token = text(&opened["token"]);
        let (_, own) = send(daemon.with(&token, Method::GET, "/v1/tokens/self")).await;
        let path = format!("/v1/sessions/{}", text(&opened["session"]));
        Self { path, token, jti: text(&own["jti"]) }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn call(id: u64, method: &str, params: Value) -> Message {
    let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    Message::text(call.to_string())
}

/// The end of a session is stored before its connections are told; a full disk puts that off.
#[tokio::test]
async fn what_waits_for_a_session_ends_with_its_token_also_on_a_full_disk() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let daemon = shim.start(&shell.path("data"));
    let run = daemon.run_source(BLUEPRINT, json!({})).await;
    let (talks, polls) = (Opened::new(&daemon).await, Opened::new(&daemon).await);
    let opened = Opened::new(&daemon).await;

    let url = format!("{}{}/ws", daemon.url, talks.path).replacen("http", "ws", 1);
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {}", talks.token).parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    let (mut socket, _) = connect_async(request).await.unwrap();
    socket.send(call(1, "run/get", json!({"run": run, "wait": "60s"}))).await.unwrap();
    socket.send(call(2, "tasks/list", json!({}))).await.unwrap();
    // Calls begin in their order: once the second is answered, the first one waits.
    loop {
        let message = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
        let message = message.into_text().unwrap();
        assert!(!message.as_str().contains(r#""id":1"#), "{message}");
        if message.as_str().contains(r#""id":2"#) {
            break;
        }
    }
    // The token that opened a session may poll for it, and is not revoked here.
    let mut polling = Vec::new();
    for (session, token) in [(&polls, &polls.token), (&opened, &daemon.token)] {
        let poll = daemon.with(token, Method::POST, &format!("{}/next?wait=60s", session.path));
        polling.push(tokio::spawn(refusal(poll)));
        eventually("the poll", async || {
            let (_, view) = send(daemon.get(&session.path)).await;
            when(view["connected"] == true, view)
        })
        .await;
    }

    shim.fail("full 1");
    for jti in [&talks.jti, &polls.jti, &opened.jti] {
        let (status, refused) = send(daemon.delete(&format!("/v1/tokens/{jti}"))).await;
        assert_eq!((status, &refused["code"]), (503, &json!("storage_full")), "{refused}");
    }
    for polled in polling {
        assert_eq!(polled.await.unwrap(), (401, "token_revoked".to_owned()));
    }
    let mut closed = None;
    while let Some(Ok(message)) = timeout(PATIENCE, socket.next()).await.expect("it ends") {
        match message {
            Message::Text(text) => assert!(!text.as_str().contains(r#""id":1"#), "{text}"),
            Message::Close(frame) => closed = frame.map(|frame| u16::from(frame.code)),
            _ => {}
        }
    }
    assert_eq!(closed, Some(4001));
}
