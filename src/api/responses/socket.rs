//! Responses over a WebSocket: `GET /v1/responses`.
//!
//! A client sends `response.create` with the parameters of a request and receives the events of the
//! response, one per message. Only one response is in progress at a time; further messages are
//! queued. The connection keeps the conversation of its last response, so that it can be continued
//! even if it was not stored. A continuation that fails evicts it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{
        State,
        ws::{
            CloseFrame, Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection,
        },
    },
    response::Response,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{ParsedRequest, begin, continued, earlier, fresh, stored};
use crate::{
    api::{
        app::Api,
        body::read_json,
        params::{Asker, not_let_in},
    },
    door::{Code, Credential, Entered, ModelErrorBody, Place, Problem},
    engine::{Bearer, Caller, EngineError},
    respond::open_responses::Create,
    session::LinkEnd,
};

/// The maximum size of a message; one of twice the size ends the connection.
const MESSAGE_BYTES: usize = 8 << 20;
/// The maximum number of messages queued behind the response in progress.
const WAITING: usize = 16;

/// Connects for responses over a WebSocket; docs/responses-api.md has the messages.
#[utoipa::path(
    get, path = "/v1/responses", operation_id = "response_connect", tag = "responses",
    responses(
        (status = 101, description = "It is connected."),
        (status = 426, description = "`upgrade_required`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn connect(
    State(api): State<Api>,
    Asker(caller): Asker,
    Extension(entered): Extension<Entered>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|rejection| {
        let detail = format!("POST a request, or connect as a WebSocket: {rejection}");
        Problem::new(Code::UpgradeRequired, detail)
    })?;
    let given = entered.given.ok_or_else(not_let_in)?;
    let place = entered.place.ok_or_else(not_let_in)?.beside();
    let upgrade = upgrade.max_message_size(2 * MESSAGE_BYTES).max_frame_size(2 * MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let tasks = api.tasks.clone();
        let line = Box::new(ResponseSocket {
            heard: Instant::now(),
            waiting: VecDeque::new(),
            last: None,
            api,
            socket,
            caller,
            given,
            place,
        });
        // Tracked as a task of the host, so that a stop waits until the peer was notified.
        let _ = tasks.spawn(line.serve()).await;
    }))
}

/// The reason why a connection is over.
enum Over {
    /// The peer is gone, or does not accept data.
    Gone,
    /// The token was revoked or has expired: the code of the close frame, and the reason.
    Token(u16, &'static str),
}

/// A message that waits, and its share of the memory.
type Kept = (String, Place);

/// One connection.
struct ResponseSocket {
    api: Api,
    socket: WebSocket,
    caller: Caller,
    given: Arc<Credential>,
    place: Place,
    /// Messages queued while a response is in progress.
    waiting: VecDeque<Kept>,
    /// The last response, and its conversation.
    last: Option<(String, Vec<Value>)>,
    /// The time of the peer's last message.
    heard: Instant,
}

impl ResponseSocket {
    async fn serve(mut self: Box<Self>) {
        // The connection is over in either case; a run that was started continues.
        let close = match self.talk().await {
            Ok(()) | Err(Over::Gone) => None,
            Err(Over::Token(code, reason)) => Some(CloseFrame { code, reason: reason.into() }),
        };
        self.waiting.clear();
        let goodbye = async {
            self.socket.send(Message::Close(close)).await?;
            // Wait until the peer has closed too, so that the code is not cut off.
            while let Some(Ok(_)) = self.socket.recv().await {}
            Ok::<_, axum::Error>(())
        };
        // The peer may be gone.
        let _ = timeout(Duration::from_secs(2), goodbye).await;
    }

    async fn talk(&mut self) -> Result<(), Over> {
        let ping = self.api.door.limits.ping;
        let mut beat = tokio::time::interval_at(self.heard + ping, ping);
        loop {
            if let Some(message) = self.waiting.pop_front() {
                self.answer(message).await?;
                continue;
            }
            tokio::select! {
                () = self.api.stopping.cancelled() => return Ok(()),
                message = self.socket.recv() => self.hear(message).await?,
                _ = beat.tick() => self.look(ping).await?,
            }
        }
    }

    /// Sends a ping; fails if the peer was silent for too long, or its token is not good any more.
    async fn look(&mut self, ping: Duration) -> Result<(), Over> {
        if self.heard.elapsed() > ping.saturating_mul(2) {
            return Err(Over::Gone);
        }
        self.admit()?;
        self.send(Message::Ping(Default::default())).await
    }

    /// Handles a message.
    async fn hear(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Over> {
        self.heard = Instant::now();
        match message {
            Some(Ok(Message::Text(text))) if text.len() > MESSAGE_BYTES => {
                let detail = format!("a message may have at most {MESSAGE_BYTES} bytes");
                self.refuse(&Problem::new(Code::TooLarge, detail)).await
            }
            Some(Ok(Message::Text(_))) if self.waiting.len() >= WAITING => {
                let detail = format!("{WAITING} messages wait already; wait for the response");
                self.refuse(&Problem::new(Code::Busy, detail)).await
            }
            Some(Ok(Message::Text(text))) => match self.place.message(text.len()) {
                Ok(held) => {
                    self.waiting.push_back((text.as_str().to_owned(), held));
                    Ok(())
                }
                Err(problem) => self.refuse(&problem).await,
            },
            Some(Ok(Message::Binary(_))) => {
                self.refuse(&Problem::new(Code::InvalidBody, "messages are text, not bytes")).await
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Over::Gone),
        }
    }

    /// Verifies the token: before a message is read, before events are sent, and at each ping.
    fn admit(&mut self) -> Result<(), Over> {
        match self.given.bearer(&self.api.engine, self.api.door.clock.now_ms()) {
            Ok(Bearer::Caller(caller)) => {
                self.caller = caller;
                Ok(())
            }
            Err(EngineError::Store(_)) => {
                Err(Over::Token(LinkEnd::Revoked.code(), "the token was revoked"))
            }
            Ok(Bearer::Holder(_)) | Err(_) => {
                Err(Over::Token(LinkEnd::Expired.code(), "the token has expired"))
            }
        }
    }

    async fn answer(&mut self, (text, _held): Kept) -> Result<(), Over> {
        self.admit()?;
        let asked = self.read(&text).await;
        drop(text);
        match asked {
            Ok(asked) => match self.respond(asked).await? {
                Ok(()) => Ok(()),
                Err(problem) => self.refuse(&problem).await,
            },
            Err(problem) => self.refuse(&problem).await,
        }
    }

    /// Parses a message.
    async fn read(&mut self, text: &str) -> Result<ParsedRequest, Problem> {
        self.api.door.take_turn(&self.caller)?;
        let body: Value = read_json(text.as_bytes())?;
        if body["type"] != "response.create" {
            let detail = "a message has the type response.create";
            return Err(Problem::new(Code::InvalidBody, detail).at("$.type"));
        }
        for name in ["stream", "background", "stream_options"] {
            if !body[name].is_null() {
                let detail = format!("{name} means nothing over a WebSocket");
                return Err(Problem::new(Code::InvalidBody, detail).at(format!("$.{name}")));
            }
        }
        let previous = body["previous_response_id"].as_str();
        let mut last = self.last.take_if(|(id, _)| Some(id.as_str()) == previous);
        // Whatever comes of it: what could not be continued once is not kept for another try.
        let create = Create::read(&body, &mut fresh)?;
        match (&create.previous, last.take()) {
            (Some(_), Some((_, conversation))) => continued(create, conversation),
            (Some(previous), None) => {
                let before = earlier(&self.api, &self.caller, previous).await?;
                continued(create, before)
            }
            (None, _) => stored(&self.api, &self.caller, create).await,
        }
    }

    /// Sends the events of a response until it ends.
    async fn respond(&mut self, asked: ParsedRequest) -> Result<Result<(), Problem>, Over> {
        let mut answering = match begin(&self.api, &self.caller, asked, None).await {
            Ok(answering) => answering,
            Err(problem) => return Ok(Err(problem)),
        };
        let ping = self.api.door.limits.ping;
        let mut beat = tokio::time::interval_at(Instant::now() + ping, ping);
        loop {
            self.admit()?;
            for event in answering.responding.stream().take() {
                self.send(Message::text(event.data.to_string())).await?;
            }
            tokio::select! {
                more = answering.responding.more() => match more {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return Ok(Err(error.into())),
                },
                message = self.socket.recv() => self.hear(message).await?,
                _ = beat.tick() => self.look(ping).await?,
                () = self.api.stopping.cancelled() => return Err(Over::Gone),
            }
        }
        let stream = answering.responding.stream();
        let id = stream.response()["id"].as_str().unwrap_or_default().to_owned();
        self.last = (stream.status() != "failed").then(|| (id, stream.conversation()));
        Ok(Ok(()))
    }

    async fn refuse(&mut self, problem: &Problem) -> Result<(), Over> {
        let body = problem.body();
        let mut event = json!({ "type": "error", "status": body.model_status() });
        if let Ok(Value::Object(error)) = serde_json::to_value(body.model_error()) {
            event.as_object_mut().expect("it was just made").extend(error);
        }
        self.send(Message::text(event.to_string())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Over> {
        match timeout(self.api.door.limits.send_time, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Over::Gone),
        }
    }
}
