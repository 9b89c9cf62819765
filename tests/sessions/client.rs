//! A session's client, as somebody writes it who has read docs/session-protocol.md.

use std::{collections::VecDeque, time::Duration};

use futures::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{self, Message, client::IntoClientRequest as _, protocol::CloseFrame},
};

use crate::support::{Daemon, PATIENCE, send};

/// A blueprint whose flow is `body`; all agents but `note` are a session's.
pub fn blueprint(body: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {{ name = "team",
  agents = {{
    writer = {{ operator = "main-ai", prompt = "Write {{{{ what }}}}.", system = "You write.",
      worker = {{ subagent_type = "writer", tools = {{ "Read", "Edit" }} }} }},
    coder = {{ operator = "main-ai", system = "You code.",
      worker = {{ subagent_type = "coder" }},
      retry = {{ max_attempts = 3, backoff = "1ms" }} }},
    strict = {{ operator = "main-ai", worker = {{ subagent_type = "judge" }},
      output = s.object {{ ok = s.boolean }} }},
    timed = {{ operator = "main-ai", worker = {{ subagent_type = "x" }}, timeout = "1h" }},
    note = {{ operator = "echo" }},
  }},
  flow = function(ctx, input) {body} end }}"#
    )
}

/// An open session: its id and token.
#[derive(Debug, Clone)]
pub struct Opened {
    pub id: String,
    pub token: String,
}

/// Opens a session of `main-ai`.
pub async fn open(daemon: &Daemon) -> Opened {
    open_with(daemon, json!({})).await
}

/// Opens a session of `main-ai` with a body; it may bring code.
pub async fn open_with(daemon: &Daemon, mut body: Value) -> Opened {
    body["extra_verbs"] = json!(["run.source"]);
    let (status, opened) = send(daemon.post("/v1/operators/main-ai/sessions", &body)).await;
    assert_eq!(status, 201, "{opened}");
    let text = |name: &str| opened[name].as_str().unwrap().to_owned();
    assert_eq!(text("ws"), format!("/v1/sessions/{}/ws", text("session")));
    Opened { id: text("session"), token: text("token") }
}

/// A connection that is open.
pub struct Socket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// What came and was not asked for yet.
    heard: VecDeque<Value>,
    /// How it was closed.
    pub closed: Option<(u16, String)>,
    /// The number of the last numbered frame.
    pub last: u64,
    calls: u64,
}

/// Why there is no connection: the status and the code.
pub type Refusal = (u16, String);

impl Opened {
    /// Connects.
    pub async fn connect(&self, daemon: &Daemon) -> Socket {
        self.try_connect(daemon, None).await.unwrap()
    }

    /// Connects, or not.
    pub async fn try_connect(
        &self,
        daemon: &Daemon,
        resume: Option<u64>,
    ) -> Result<Socket, Refusal> {
        let resume = resume.map_or_else(String::new, |seq| format!("?resume={seq}"));
        let url = format!("{}/v1/sessions/{}/ws{resume}", daemon.url, self.id);
        let mut request = url.replacen("http", "ws", 1).into_client_request().unwrap();
        let bearer = format!("Bearer {}", self.token).parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        self.handshake(request, resume).await
    }

    /// Connects as a client in a browser does, which can send no header of its own; gives the
    /// protocol that the server took.
    pub async fn connect_by_protocol(&self, daemon: &Daemon) -> (Option<String>, u16) {
        let url = format!("{}/v1/sessions/{}/ws", daemon.url, self.id);
        let mut request = url.replacen("http", "ws", 1).into_client_request().unwrap();
        let offer = format!("moonswarm.v1, bearer.{}", self.token).parse().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", offer);
        match tokio_tungstenite::connect_async(request).await {
            Ok((_, answer)) => {
                let taken = answer.headers().get("sec-websocket-protocol");
                (taken.map(|it| it.to_str().unwrap().to_owned()), answer.status().as_u16())
            }
            Err(tungstenite::Error::Http(answer)) => (None, answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn handshake(
        &self,
        request: tungstenite::http::Request<()>,
        resume: String,
    ) -> Result<Socket, Refusal> {
        match tokio_tungstenite::connect_async(request).await {
            Ok((stream, _)) => {
                let heard = VecDeque::new();
                let mut socket = Socket { stream, heard, closed: None, last: 0, calls: 0 };
                let Some(hello) = socket.read().await else {
                    return Err((0, "it was cut off".to_owned()));
                };
                assert_eq!(hello["method"], "hello", "it is the first message: {hello}");
                assert_eq!(hello["params"]["session"], self.id.as_str(), "{hello}");
                socket.last = resume.strip_prefix("?resume=").map_or(0, |n| n.parse().unwrap());
                Ok(socket)
            }
            Err(tungstenite::Error::Http(answer)) => {
                let body: Value =
                    serde_json::from_slice(answer.body().as_deref().unwrap_or_default())
                        .unwrap_or_default();
                let code = body["code"].as_str().unwrap_or_default().to_owned();
                Err((answer.status().as_u16(), code))
            }
            Err(error) => Err((0, error.to_string())),
        }
    }

    /// An HTTP request as this session.
    pub fn http(&self, daemon: &Daemon, method: Method, path: &str) -> reqwest::RequestBuilder {
        daemon.with(&self.token, method, path)
    }
}

impl Socket {
    /// The next message; nothing once it is closed.
    pub async fn next(&mut self) -> Option<Value> {
        match self.heard.pop_front() {
            Some(heard) => Some(heard),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Option<Value> {
        let by = tokio::time::Instant::now() + PATIENCE;
        loop {
            // Pings are no news: they do not prolong the patience.
            let message = tokio::time::timeout_at(by, self.stream.next()).await;
            match message.unwrap_or_else(|_| panic!("nothing came: {:?}", self.heard)) {
                None => return None,
                Some(Ok(Message::Text(text))) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(value["jsonrpc"], "2.0", "{value}");
                    crate::support::schema::check_frame(&value);
                    let seq = value["seq"].as_u64().expect("every message has a number");
                    let method = value["method"].as_str().unwrap_or_default();
                    if matches!(method, "task/spawn" | "task/cancel" | "task/answer") {
                        assert!(self.last == 0 || seq == self.last + 1, "a gap before {value}");
                        self.last = seq;
                    }
                    return Some(value);
                }
                Some(Ok(Message::Close(frame))) => {
                    self.closed = frame.map(|CloseFrame { code, reason }| {
                        (u16::from(code), reason.as_str().to_owned())
                    });
                }
                Some(Ok(_)) => {}
                Some(Err(_)) => return None,
            }
        }
    }

    /// Waits for so many pings; the messages before them are kept.
    pub async fn pings(&mut self, mut count: usize) {
        let by = tokio::time::Instant::now() + PATIENCE;
        while count > 0 {
            let message = tokio::time::timeout_at(by, self.stream.next()).await;
            match message.unwrap_or_else(|_| panic!("{count} more pings did not come")) {
                Some(Ok(Message::Ping(_))) => count -= 1,
                Some(Ok(Message::Text(text))) => {
                    self.heard.push_back(serde_json::from_str(&text).unwrap());
                }
                other => panic!("no ping: {other:?}"),
            }
        }
    }

    /// The next message of a method; what came before it is kept.
    pub async fn until(&mut self, method: &str) -> Value {
        if let Some(at) = self.heard.iter().position(|value| value["method"] == method) {
            return self.heard.remove(at).unwrap();
        }
        loop {
            let Some(value) = self.read().await else {
                panic!("closed before {method}: {:?}, {:?}", self.closed, self.heard)
            };
            if value["method"] == method {
                return value;
            }
            self.heard.push_back(value);
        }
    }

    /// Whether a message of a method is there within a while.
    pub async fn is_silent(&mut self, method: &str, within: Duration) -> bool {
        tokio::time::timeout(within, self.until(method)).await.is_err()
    }

    /// Sends a text as it is.
    pub async fn raw(&mut self, message: Message) {
        self.stream.send(message).await.unwrap();
    }

    /// Sends a notification.
    pub async fn notify(&mut self, method: &str, params: Value) {
        let call = json!({"jsonrpc": "2.0", "method": method, "params": params});
        // A server that has closed hears nothing any more.
        let _ = self.stream.send(Message::text(call.to_string())).await;
    }

    /// Sends a call with an id of its own, and waits for no answer.
    pub async fn begin(&mut self, id: u64, method: &str, params: Value) {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.raw(Message::text(call.to_string())).await;
    }

    /// Calls a method and gives its answer, whole.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        self.begin(id, method, params).await;
        self.answer(&json!(id)).await
    }

    /// Calls a method; nothing if the connection breaks meanwhile.
    pub async fn try_call(&mut self, method: &str, params: Value) -> Option<Value> {
        self.calls += 1;
        let id = json!(self.calls);
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.stream.send(Message::text(call.to_string())).await.ok()?;
        loop {
            let value = self.read().await?;
            if value.get("method").is_none() && value["id"] == id {
                return Some(value);
            }
            self.heard.push_back(value);
        }
    }

    /// The answer to a call.
    pub async fn answer(&mut self, id: &Value) -> Value {
        loop {
            let Some(value) = self.read().await else { panic!("closed: {:?}", self.closed) };
            if value.get("method").is_none() && value["id"] == *id {
                return value;
            }
            self.heard.push_back(value);
        }
    }

    /// Calls a method that goes well, and gives its result.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        crate::support::schema::check_call(&call);
        let answer = self.call(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Calls a method that is refused, and gives the code.
    pub async fn refused(&mut self, method: &str, params: Value) -> String {
        let answer = self.call(method, params).await;
        let code = answer["error"]["data"]["code"].as_str();
        code.unwrap_or_else(|| panic!("{method}: {answer}")).to_owned()
    }

    /// Waits until the server has closed it; the code and the reason.
    pub async fn end(&mut self) -> (u16, String) {
        while self.next().await.is_some() {}
        self.closed.clone().unwrap_or_default()
    }

    /// Goes away without a word.
    pub fn drop_dead(self) {
        drop(self.stream);
    }
}
