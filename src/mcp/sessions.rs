//! Sessions of clients over HTTP that speak a revision before 2026-07-28. A session lets a run ask
//! its client during a call, a client cancel a call, and has the stream of its notices.
//!
//! Nothing is stored. The id of a session holds what its client said of itself, so a session that was
//! closed to make room, or that another process opened, is opened again by its next message. Only
//! the token that opened a session can use it, and it gives that token no rights.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use futures::Stream;
use parking_lot::Mutex;
use rmcp::{
    model::{ClientJsonRpcMessage, InitializeRequestParams, ServerJsonRpcMessage},
    transport::{
        WorkerTransport,
        streamable_http_server::session::{
            RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionState,
            SessionStore, SessionStoreError,
            local::{LocalSessionManager, LocalSessionManagerError, LocalSessionWorker},
        },
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// The header with the id of a session.
pub(super) const HEADER: &str = "mcp-session-id";
/// The maximum number of open sessions.
const MOST: usize = 1_024;
/// The same of one token.
const MOST_OF_ONE: usize = 32;
/// The number of ended sessions whose ids are refused.
const ENDED: usize = 4_096;
/// The maximum size of what an id says of its client, in bytes. A client that says more of itself
/// begins anew after its session was closed.
const SAID: usize = 2_048;
/// The maximum length of the name of a client, in characters.
const NAME: usize = 64;
/// The time after which a session without messages is closed. It is longer than the time in which a
/// client must answer a question, and than the interval at which one with a stream is asked whether it
/// is there.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// The time in which a session ends that makes room. One whose client does not read its stream ends
/// with that stream.
const LEAVE: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The id for a session that the request of this task opens.
    static OPENS: SessionId;
}

/// The open sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    local: LocalSessionManager,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Each open session with the number of its last use.
    used: HashMap<SessionId, u64>,
    uses: u64,
    /// Sessions that their clients have ended, and their order.
    ended: HashSet<SessionId>,
    order: VecDeque<SessionId>,
}

impl Sessions {
    /// Creates the book of a server.
    pub(super) fn new() -> Arc<Self> {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(IDLE);
        Arc::new(Self { local, book: Mutex::default() })
    }

    /// Returns true if the token with this id opened the session.
    pub(super) fn is_of(id: &str, jti: &str) -> bool {
        id.split('.').next() == Some(owner(jti).as_str())
    }

    /// Handles a request that opens a session, if it is one.
    pub(super) async fn opening<F: Future>(jti: &str, message: &[u8], handled: F) -> F::Output {
        OPENS.scope(id_for(jti, message), handled).await
    }

    /// Closes the sessions that were used the longest time ago, so that there is room for one more.
    async fn make_room(&self, id: &SessionId) {
        let leaving = self.book.lock().use_and_leave(id);
        for id in leaving {
            // It may have ended by itself.
            let _ = timeout(LEAVE, self.local.close_session(&id)).await;
        }
    }
}

impl Book {
    fn touch(&mut self, id: &SessionId) {
        self.uses += 1;
        if let Some(used) = self.used.get_mut(id) {
            *used = self.uses;
        }
    }

    /// Adds a session, and removes those that are too many.
    fn use_and_leave(&mut self, id: &SessionId) -> Vec<SessionId> {
        self.uses += 1;
        self.used.insert(Arc::clone(id), self.uses);
        let owner = id.split('.').next();
        let is_own = |other: &&SessionId| other.split('.').next() == owner;
        let mut leaving = Vec::new();
        if self.used.keys().filter(is_own).count() > MOST_OF_ONE {
            leaving.extend(self.oldest(is_own));
        } else if self.used.len() > MOST {
            leaving.extend(self.oldest(|_| true));
        }
        for id in &leaving {
            self.used.remove(id);
        }
        leaving
    }

    fn oldest(&self, of: impl Fn(&&SessionId) -> bool) -> Option<SessionId> {
        let among = self.used.iter().filter(|(id, _)| of(id));
        among.min_by_key(|(_, used)| **used).map(|(id, _)| Arc::clone(id))
    }

    fn end(&mut self, id: SessionId) {
        if self.ended.insert(Arc::clone(&id)) {
            self.order.push_back(id);
        }
        if self.order.len() > ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

/// Returns the part of an id that names its token, without the token's id.
fn owner(jti: &str) -> String {
    blake3::hash(jti.as_bytes()).to_hex()[..16].to_owned()
}

/// Returns a new id: the owner, a random part, and what the client said of itself.
fn id_for(jti: &str, message: &[u8]) -> SessionId {
    let unique = uuid::Uuid::new_v4().simple();
    let message: Value = serde_json::from_slice(message).unwrap_or_default();
    let said = said(&message["params"]).to_string();
    let said = if said.len() > SAID { "" } else { said.as_str() };
    format!("{}.{unique}.{}", owner(jti), BASE64_URL_SAFE_NO_PAD.encode(said)).into()
}

/// Returns the part of the parameters of `initialize` that calls depend on.
fn said(params: &Value) -> Value {
    let mut able = serde_json::Map::new();
    for ability in ["elicitation", "sampling", "roots"] {
        if let Some(said) = params["capabilities"].get(ability) {
            able.insert(ability.to_owned(), said.clone());
        }
    }
    let text = |value: &Value| -> String {
        value.as_str().unwrap_or_default().chars().take(NAME).collect()
    };
    let client = &params["clientInfo"];
    json!({
        "protocolVersion": text(&params["protocolVersion"]),
        "capabilities": able,
        "clientInfo": { "name": text(&client["name"]), "version": text(&client["version"]) },
    })
}

fn state_of(id: &str) -> Option<SessionState> {
    let said = BASE64_URL_SAFE_NO_PAD.decode(id.split('.').nth(2)?).ok()?;
    let params: InitializeRequestParams = serde_json::from_slice(&said).ok()?;
    Some(SessionState::new(params))
}

#[async_trait::async_trait]
impl SessionStore for Sessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let is_ended = self.book.lock().ended.contains(id);
        Ok(if is_ended { None } else { state_of(id) })
    }

    async fn store(&self, _id: &str, _state: &SessionState) -> Result<(), SessionStoreError> {
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        self.book.lock().end(id.into());
        Ok(())
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let opened = OPENS.try_with(Arc::clone).ok();
        let Some(id) = opened else { return self.local.create_session().await };
        match self.restore_session(Arc::clone(&id)).await? {
            RestoreOutcome::Restored(transport) => Ok((id, transport)),
            // A request opens one session; its random part is of this request only.
            _ => Err(LocalSessionManagerError::SessionNotFound(id)),
        }
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.book.lock().touch(id);
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.book.lock().used.remove(id);
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_stream(id, message).await
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.resume(id, last_event_id).await
    }

    async fn restore_session(
        &self,
        id: SessionId,
    ) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        self.make_room(&id).await;
        self.local.restore_session(id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(capabilities: Value) -> Vec<u8> {
        let client = json!({ "name": "x".repeat(1_000), "version": "1" });
        json!({ "method": "initialize", "params": { "protocolVersion": "2025-11-25",
            "capabilities": capabilities, "clientInfo": client } })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn an_id_says_whose_it_is_and_what_its_client_can_do() {
        let able = json!({ "elicitation": { "form": {} }, "experimental": { "x": "y" } });
        let id = id_for("jti_a", &hello(able));
        assert!(Sessions::is_of(&id, "jti_a") && !Sessions::is_of(&id, "jti_b"));
        assert!(!Sessions::is_of("", "jti_a") && !id.contains("jti_a"));
        let params = json!(state_of(&id).unwrap().initialize_params);
        assert_eq!(params["capabilities"], json!({ "elicitation": { "form": {} } }));
        assert_eq!(params["clientInfo"]["name"].as_str().unwrap().len(), NAME);
        let long = id_for("jti_a", &hello(json!({ "elicitation": { "x": "y".repeat(SAID) } })));
        assert!(long.len() < 64 && state_of(&long).is_none());
        assert!(id_for("jti_a", b"not JSON").is_ascii() && state_of("a.b").is_none());
    }

    #[test]
    fn the_session_that_was_used_the_longest_ago_makes_room() {
        let mut book = Book::default();
        let id = |owner: usize, n: usize| SessionId::from(format!("{owner}.{n}"));
        for n in 0..MOST_OF_ONE {
            assert!(book.use_and_leave(&id(0, n)).is_empty());
        }
        book.touch(&id(0, 0));
        assert_eq!(book.use_and_leave(&id(0, MOST_OF_ONE)), [id(0, 1)], "of the same token");
        for owner in 1..=MOST - MOST_OF_ONE {
            assert!(book.use_and_leave(&id(owner, 0)).is_empty());
        }
        assert_eq!(book.use_and_leave(&id(MOST, 0)), [id(0, 2)], "of anybody");
        assert_eq!(book.used.len(), MOST);
    }

    #[test]
    fn an_ended_session_stays_ended_for_as_long_as_there_is_room() {
        let mut book = Book::default();
        for n in 0..=ENDED {
            book.end(n.to_string().into());
            book.end(n.to_string().into());
        }
        assert_eq!((book.ended.len(), book.order.len()), (ENDED, ENDED));
        assert!(!book.ended.contains("0") && book.ended.contains("1"));
    }
}
