//! The socket of a session: `GET /v1/sessions/{session}/ws`.
//!
//! Owns the upgrade and the loop that moves frames. Numbered frames are pulled from the session's
//! mailbox, so nothing accumulates for a client that does not read: it is closed with 1013 if it
//! does not accept a message in time, and resumes later. Calls reach a run in the order of the
//! messages, and are answered as they complete.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{
        State,
        ws::{
            CloseFrame, Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection,
        },
    },
    http::HeaderMap,
    response::Response,
};
use futures::{FutureExt as _, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, timeout},
};
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::{
    app::Api,
    params::{Asker, At, Params, not_let_in},
};
use crate::{
    door::{self, Code, Entered, Place, Problem, ProblemBody},
    engine::{Bearer, Caller, EngineError, rfc3339},
    protocol::SessionId,
    session::{Link, LinkEnd},
};

pub(super) mod calls;
mod methods;
mod order;
mod rpc;
mod work;

use order::Order;
use rpc::{Answer, Call};

/// The version of the frames.
const PROTOCOL: u32 = 1;
/// The WebSocket subprotocol that a client may request. A client in a browser requests it in
/// addition to the one that carries its token, because browsers require the server to select one.
const SUBPROTOCOL: &str = "moonswarm.v1";
/// The maximum size of a message.
const MESSAGE_BYTES: usize = 8 << 20;
/// A larger message is refused without reading all of it, which ends the connection.
const MOST_BYTES: usize = 16 << 20;
/// The size of a connection's buffers in each direction.
const BUFFER: usize = 4 << 10;
/// The maximum number of calls in progress; further ones are read after one is answered.
const CALLS: usize = 128;
/// The maximum number of events queued for sending.
const EVENTS: usize = 64;

/// The place to go on from.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ConnectParams {
    /// The number of the last frame that was seen: it and all before count as acknowledged, and
    /// exactly those after it follow. Without it, every frame that was not acknowledged follows.
    resume: Option<u64>,
}

/// Connects to a session with its own token. JSON-RPC 2.0; docs/session-protocol.md has the frames.
#[utoipa::path(
    get, path = "/v1/sessions/{session}/ws", operation_id = "session_connect", tag = "operators",
    params(("session" = String, Path, description = "The session's id."), ConnectParams),
    responses(
        (status = 101, description = "It is connected; whoever was before is sent away with 4000."),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `seq_ahead`", body = ProblemBody),
        (status = 426, description = "`upgrade_required`", body = ProblemBody),
    ),
)]
pub(super) async fn connect(
    State(api): State<Api>,
    Asker(caller): Asker,
    Extension(entered): Extension<Entered>,
    At(session): At<String>,
    Params(params): Params<ConnectParams>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|rejection| {
        Problem::new(Code::UpgradeRequired, format!("connect as a WebSocket: {rejection}"))
    })?;
    let token = door::bearer(&headers)?.to_owned();
    // The connection outlives the request: what is started over it is not a part of that trace.
    let caller = Caller { trace: None, ..caller };
    let session = SessionId::from(session);
    let link = api.engine.sessions().connect(&caller, &session, params.resume).await?;
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(MOST_BYTES)
        .max_frame_size(MOST_BYTES)
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER);
    let place = entered.place.ok_or_else(not_let_in)?.beside();
    let (engine, lost) = (api.engine.clone(), Arc::clone(&link));
    let upgrade = upgrade.on_failed_upgrade(move |_| engine.sessions().disconnect(&lost));
    Ok(upgrade.on_upgrade(move |socket| async move {
        let tasks = api.tasks.clone();
        let line = Box::new(SessionSocket::new(api, socket, link, place, (caller, token)));
        // Tracked as a task of the host, so that a stop waits until the peer was notified.
        let _ = tasks.spawn(line.serve()).await;
    }))
}

/// One connection.
struct SessionSocket {
    api: Api,
    socket: WebSocket,
    link: Arc<Link>,
    place: Place,
    caller: Caller,
    token: String,
    calls: FuturesUnordered<BoxFuture<'static, Answer>>,
    order: Order,
    events: mpsc::Receiver<methods::Watched>,
    watch: methods::Watch,
    /// The time of the peer's last message.
    heard: Instant,
    /// The time at which the token of a renewal was last read, until it was taken over.
    sought: Option<Instant>,
}

impl SessionSocket {
    fn new(
        api: Api,
        socket: WebSocket,
        link: Arc<Link>,
        place: Place,
        (caller, token): (Caller, String),
    ) -> Self {
        let (sender, events) = mpsc::channel(EVENTS);
        let watch = methods::Watch::new(sender, CancellationToken::new());
        let (calls, order) = (FuturesUnordered::new(), Order::default());
        let (heard, sought) = (Instant::now(), None);
        Self { api, socket, link, place, caller, token, calls, order, events, watch, heard, sought }
    }

    async fn serve(mut self: Box<Self>) {
        let end = match self.talk().await {
            Ok(end) | Err(end) => end,
        };
        self.watch.stop();
        if let Some(end) = end {
            self.say_goodbye(&end).await;
        }
        self.api.engine.sessions().disconnect(&self.link);
    }

    /// Moves frames until the peer is gone (`None`) or there is a reason to end.
    async fn talk(&mut self) -> Result<Option<LinkEnd>, Option<LinkEnd>> {
        self.hello().await?;
        let ping = self.api.door.limits.ping;
        let mut beat = tokio::time::interval_at(self.heard + ping, ping);
        // After a message that the peer was slow to take, it has a whole interval for a pong.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stopping = self.api.stopping.clone();
        loop {
            if let Some(end) = self.link.ended() {
                return Ok(Some(end.clone()));
            }
            while let Some(frame) = self.api.engine.sessions().next_frame(&self.link) {
                self.send(Message::text(frame)).await?;
            }
            let left = Duration::from_millis(self.left_ms());
            tokio::select! {
                biased;
                () = stopping.cancelled() => return Ok(Some(LinkEnd::Stopping)),
                // The link ends once the end of the session is stored, which may take long.
                _ = self.caller.token_revoked(&self.api.engine) => {
                    return Ok(Some(LinkEnd::Revoked));
                }
                () = self.link.woken() => {}
                Some(answer) = self.calls.next(), if !self.calls.is_empty() => {
                    self.answer(answer).await?;
                }
                message = self.socket.recv(), if self.calls.len() < CALLS => match message {
                    None => return Ok(None),
                    Some(Ok(message)) => if self.hear(message).await? { return Ok(None) },
                    Some(Err(error)) => return Ok(rpc::broken(error)),
                },
                _ = beat.tick() => {
                    // Its pongs are not read as long as it has as many calls as it may.
                    if self.calls.len() >= CALLS {
                        self.heard = Instant::now();
                    }
                    if self.heard.elapsed() > ping.saturating_mul(2) {
                        return Ok(Some(LinkEnd::Silent));
                    }
                    self.send(Message::Ping(Default::default())).await?;
                }
                () = tokio::time::sleep(left) => if self.left_ms() == 0 {
                    return Ok(Some(LinkEnd::Expired));
                },
                // Last: a long history that is sent slowly holds back none of the others.
                Some(event) = self.events.recv() => {
                    let text = rpc::notify("event", self.link.sent(), &event.text);
                    self.send(Message::text(text)).await?;
                }
            }
        }
    }

    /// Handles a message; returns true if the peer closed the connection.
    async fn hear(&mut self, message: Message) -> Result<bool, Option<LinkEnd>> {
        self.heard = Instant::now();
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => {
                let problem = Problem::new(Code::InvalidBody, "frames are text, not bytes");
                self.answer(Answer::refusal(None, problem)).await?;
                return Ok(false);
            }
            Message::Ping(_) | Message::Pong(_) => return Ok(false),
            Message::Close(_) => return Ok(true),
        };
        if text.len() > MESSAGE_BYTES {
            let detail = format!("a message may have at most {MESSAGE_BYTES} bytes");
            let problem = Problem::new(Code::TooLarge, detail);
            self.answer(Answer::refusal(None, problem)).await?;
            return Ok(false);
        }
        self.follow_renewal().await;
        match self.admit() {
            Ok(()) => {}
            Err(EngineError::Store(_)) => return Err(Some(LinkEnd::Revoked)),
            Err(_) => return Err(Some(self.link.ended().cloned().unwrap_or(LinkEnd::Expired))),
        }
        match Call::read(text.as_bytes()) {
            Err(refusal) => self.answer(refusal).await?,
            Ok(call) => match self.take_in(text.len()) {
                Err(problem) => self.answer(Answer::refusal(call.id, problem)).await?,
                Ok(held) => {
                    let stand = self.order.join(&call.method, call.params.as_str());
                    let call = methods::begin(&self.api, &self.caller, &self.watch, call);
                    let call = async move {
                        let _held = held;
                        match stand {
                            Some(stand) => stand.run(call).await,
                            None => call.await,
                        }
                    };
                    self.calls.push(call.boxed());
                }
            },
        }
        Ok(false)
    }

    /// Counts a call against the rate of the token, and its message as long as the place is kept.
    fn take_in(&self, bytes: usize) -> Result<Place, Problem> {
        self.api.door.take_turn(&self.caller)?;
        self.place.message(bytes)
    }

    /// Returns the time when the session ends, in Unix milliseconds. A renewal over HTTP moves it too.
    fn expires_ms(&self) -> u64 {
        let stored = self.api.engine.sessions().expiry(self.link.session());
        stored.unwrap_or(self.caller.expires_ms)
    }

    /// Returns the time until the session ends, in milliseconds.
    fn left_ms(&self) -> u64 {
        self.expires_ms().saturating_sub(self.api.door.clock.now_ms())
    }

    /// Takes over the token of a renewal that came over HTTP. One that is not stored yet, or cannot be
    /// read, is looked for again after a while, and as soon as the token at hand is no longer valid.
    async fn follow_renewal(&mut self) {
        // A token names its end in whole seconds.
        if self.caller.expires_ms / 1_000 >= self.expires_ms() / 1_000 {
            self.sought = None;
            return;
        }
        let is_valid = self.api.door.clock.now_ms() < self.caller.expires_ms;
        if is_valid && self.sought.is_some_and(|at| self.heard - at < SEEK_AGAIN) {
            return;
        }
        self.sought = Some(self.heard);
        let session = self.link.session().clone();
        // Without it, the token that the client connected with decides.
        if let Ok(token) = self.api.engine.sessions().newest_token(&session).await {
            self.token = token;
        }
    }

    /// Verifies the token; called for every call.
    fn admit(&mut self) -> Result<(), EngineError> {
        if let Bearer::Caller(caller) = self.api.engine.authenticate(&self.token)? {
            self.caller = caller;
        }
        Ok(())
    }

    async fn answer(&mut self, mut answer: Answer) -> Result<(), Option<LinkEnd>> {
        // Released when the answer is sent.
        let _held = answer.held.take();
        if let Some(token) = &answer.renewed {
            self.token.clone_from(token);
            // The token was issued a moment ago.
            let _ = self.admit();
        }
        match answer.text(self.link.sent()) {
            Some(text) => self.send(Message::text(text)).await,
            None => Ok(()),
        }
    }

    async fn hello(&mut self) -> Result<(), Option<LinkEnd>> {
        let session = self.link.session().clone();
        let look = self.api.engine.sessions().get(&self.caller, &session).await;
        let view = look.map_err(|_| self.link.ended().cloned())?;
        let hello = serde_json::json!({
            "protocol": PROTOCOL,
            "session": session,
            "operator": view.operator,
            "last_seq": view.last_seq,
            "expires_at": rfc3339(self.expires_ms()),
        });
        let text = rpc::notify("hello", self.link.sent(), &hello.to_string());
        self.send(Message::text(text)).await
    }

    /// Sends one message; fails if the peer does not accept it in time.
    async fn send(&mut self, message: Message) -> Result<(), Option<LinkEnd>> {
        match timeout(self.api.door.limits.send_time, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(None),
            Err(_) => Err(Some(LinkEnd::Slow)),
        }
    }

    /// Sends the reason of the end, if the peer accepts it.
    async fn say_goodbye(&mut self, end: &LinkEnd) {
        let reason = end.reason();
        let params = serde_json::json!({ "code": end.code(), "reason": reason }).to_string();
        let last = rpc::notify("session/close", self.link.sent(), &params);
        // The reason in a close frame has at most 123 bytes.
        let mut cut = reason.len().min(123);
        while !reason.is_char_boundary(cut) {
            cut -= 1;
        }
        let close = CloseFrame { code: end.code(), reason: reason[..cut].into() };
        let goodbye = async {
            self.socket.send(Message::text(last)).await?;
            self.socket.send(Message::Close(Some(close))).await?;
            // Wait until the peer has closed too, so that the last messages are not cut off.
            while let Some(Ok(_)) = self.socket.recv().await {}
            Ok::<_, axum::Error>(())
        };
        // The peer may be gone.
        let _ = timeout(self.api.door.limits.send_time.min(GOODBYE), goodbye).await;
    }
}

/// The time after which the token of a renewal is looked for again.
const SEEK_AGAIN: Duration = Duration::from_secs(1);
/// The time limit of closing a connection.
const GOODBYE: Duration = Duration::from_secs(2);
