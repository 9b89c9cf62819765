//! Blueprints and agents as models: `/v1/responses`, `/v1/models`, `/v1/chat/completions`,
//! `/v1/messages`.
//!
//! A response is a run; its id is the run's under another prefix. The room `respond` interprets
//! requests and builds responses; this module has the routes, and the time for which each waits.
//! Refusals have the format that clients of model APIs expect (`error::for_models`).

use serde_json::Value;

use super::app::Api;
use crate::{
    door::{Code, Problem},
    engine::{Caller, Checked, EngineError, IdempotencyKey, Responding, StoredConversation},
    protocol::RunId,
    respond::{
        self, Refused,
        open_responses::{Conversation, Create},
    },
    token::Verb,
};

mod chat;
mod compact;
mod conversations;
mod create;
mod messages;
mod models;
mod socket;
mod sse;
mod stored;

pub(super) use chat::*;
pub(super) use compact::*;
pub(super) use conversations::*;
pub(super) use create::*;
pub(super) use messages::*;
pub(super) use models::*;
pub(super) use socket::*;
pub(super) use stored::*;

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let code = refused.code;
        let problem = Self::new(code, refused.message);
        match refused.param {
            Some(param) => problem.at(format!("$.{param}")),
            None => problem,
        }
    }
}

/// Converts an error of the engine to a problem of this API.
fn said(error: EngineError) -> Problem {
    match error {
        EngineError::NotFound { what: "model", id } => {
            let detail = format!("nothing answers as {id:?}; GET /v1/models lists what does");
            Problem::new(Code::ModelNotFound, detail).at("$.model")
        }
        EngineError::NotFound { what: "run", id } => {
            let id = respond::shown_id("resp_", &id);
            Problem::new(Code::NotFound, format!("there is no response {id}"))
        }
        EngineError::NotFound { what: "conversation", id } => {
            Problem::new(Code::NotFound, format!("there is no conversation {id}"))
        }
        EngineError::Invalid { what: Checked::Input, violations } => {
            let why: Vec<String> =
                violations.iter().map(|it| format!("{}: {}", it.path, it.message)).collect();
            let detail = format!(
                "what was said does not fit what is asked for ({}); say it as JSON",
                why.join("; ")
            );
            Problem::new(Code::InvalidInput, detail).at("$.input")
        }
        other => other.into(),
    }
}

/// Returns the run of a response's id.
fn run_of(id: &str) -> Result<RunId, Problem> {
    respond::run_of(id).ok_or_else(|| {
        let id: String = id.chars().take(64).collect();
        Problem::new(Code::NotFound, format!("there is no response {id}"))
    })
}

/// Returns a new id for an item: its prefix and a unique number.
fn fresh(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::now_v7().simple())
}

/// A parsed request with its conversation.
struct ParsedRequest {
    create: Create,
    conversation: Conversation,
    /// The stored conversation that it continues, as it was read.
    stored: Option<StoredConversation>,
}

/// Starts a response, or returns that of the same request before it, whatever became of the conversation
/// meanwhile.
async fn answer(
    api: &Api,
    caller: &Caller,
    create: Create,
    key: Option<IdempotencyKey>,
) -> Result<Answering, Problem> {
    match repeated(api, caller, create.store, key.as_ref()).await? {
        Some(answering) => Ok(answering),
        None => begin(api, caller, loaded(api, caller, create).await?, key).await,
    }
}

/// Returns the response to the same request before this one, if it has a key.
async fn repeated(
    api: &Api,
    caller: &Caller,
    store: bool,
    key: Option<&IdempotencyKey>,
) -> Result<Option<Answering>, Problem> {
    let Some(key) = key else { return Ok(None) };
    match api.engine.responses().repeated_response(caller, key).await.map_err(said)? {
        Some(repeated) => answered(api, caller, repeated, (store, None)).await.map(Some),
        None => Ok(None),
    }
}

/// Loads the conversation that a request continues.
async fn loaded(api: &Api, caller: &Caller, create: Create) -> Result<ParsedRequest, Problem> {
    match &create.previous {
        Some(previous) => {
            let earlier = earlier(api, caller, previous).await?;
            continued(create, earlier)
        }
        None => stored(api, caller, create).await,
    }
}

fn continued(create: Create, earlier: Vec<Value>) -> Result<ParsedRequest, Problem> {
    let conversation = Conversation::of(earlier, create.items.clone())?;
    Ok(ParsedRequest { create, conversation, stored: None })
}

/// A request with the stored conversation that it continues, if it names one.
async fn stored(api: &Api, caller: &Caller, create: Create) -> Result<ParsedRequest, Problem> {
    let Some(id) = &create.conversation else { return continued(create, Vec::new()) };
    let stored = conversation(api, caller, Verb::RunStart, id).await?;
    if stored.is_continued() {
        return Err(conversations::locked(id).at("$.conversation"));
    }
    let conversation = Conversation::of(stored.items.clone(), create.items.clone())?;
    Ok(ParsedRequest { create, conversation, stored: Some(stored) })
}

/// A stored conversation.
async fn conversation(
    api: &Api,
    caller: &Caller,
    verb: Verb,
    id: &str,
) -> Result<StoredConversation, Problem> {
    api.engine.responses().conversation(caller, verb, id).await.map_err(said)
}

/// Returns the conversation of a response: its input and its output.
async fn earlier(api: &Api, caller: &Caller, previous: &str) -> Result<Vec<Value>, Problem> {
    let missing = || {
        let previous: String = previous.chars().take(64).collect();
        let detail = format!("there is no response {previous} to continue");
        Problem::new(Code::PreviousResponseNotFound, detail).at("$.previous_response_id")
    };
    let run = respond::run_of(previous).ok_or_else(missing)?;
    let stream = match api.engine.responses().response(caller, run).await {
        Err(EngineError::NotFound { .. } | EngineError::Refused(_)) => return Err(missing()),
        stream => stream?,
    };
    if !stream.is_over() {
        let detail = format!("{previous} is not over; wait for it, or cancel it");
        return Err(Problem::new(Code::ResponseInProgress, detail).at("$.previous_response_id"));
    }
    Ok(stream.conversation())
}

/// Starts the run of a request.
async fn begin(
    api: &Api,
    caller: &Caller,
    ParsedRequest { create, conversation, stored }: ParsedRequest,
    key: Option<IdempotencyKey>,
) -> Result<Answering, Problem> {
    let store = create.store;
    let responding =
        api.engine.responses().respond(caller, create, conversation, key).await.map_err(said)?;
    answered(api, caller, responding, (store, stored)).await
}

/// Lets a stored conversation go on with a response, and deletes one that is not stored when its client
/// is gone.
async fn answered(
    api: &Api,
    caller: &Caller,
    responding: Responding,
    (store, stored): (bool, Option<StoredConversation>),
) -> Result<Answering, Problem> {
    let (answered, told) = tokio::sync::oneshot::channel();
    let (engine, run) = (api.engine.clone(), responding.run());
    let stored = stored.filter(|_| !responding.is_repeated());
    let continues = stored.as_ref().map(|it| (it.id.clone(), caller.clone()));
    if let Some(stored) = stored
        && let Err(error) = engine.responses().continue_conversation(caller, stored, run).await
    {
        let (id, _) = continues.unwrap_or_else(|| (String::new(), caller.clone()));
        let reason = "its conversation went on without it".to_owned();
        if let Err(error) = engine.cancel(caller, run, reason, None).await {
            tracing::warn!(%run, %error, "could not cancel a response that lost its conversation");
        }
        return Err(match error {
            EngineError::Store(crate::store::StoreError::Revision { .. }) => {
                conversations::locked(&id).at("$.conversation")
            }
            error => said(error),
        });
    }
    if continues.is_some() || !store {
        api.tasks.spawn(async move {
            if let Some((id, caller)) = continues {
                engine.responses().answer_conversation(&caller, &id, run).await;
            }
            if !store {
                engine.responses().let_go_once(run, told).await;
            }
        });
    }
    Ok(Answering { responding, _answered: Some(answered) })
}

/// Starts a response for a request of another API, which was converted to `body`. A model is told to
/// stop at the texts of `stop`. Returns true as well if its client asks for a stream.
async fn begin_other(
    api: &Api,
    caller: &Caller,
    body: &Value,
    stop: Option<Value>,
    key: Option<IdempotencyKey>,
) -> Result<(Answering, bool), Problem> {
    let mut create = Create::read(body, &mut fresh)?;
    if let Some(stop) = stop {
        create.ask.options.insert("stop".to_owned(), stop);
    }
    let is_streamed = create.stream;
    Ok((answer(api, caller, create, key).await?, is_streamed))
}

/// Converts the error of a failed response.
fn failed(error: &Value) -> Problem {
    Problem::new(Code::ResponseFailed, error["message"].as_str().unwrap_or("the flow failed"))
}

/// A response with a client that waits for it. One with `store: false` is deleted once the client
/// is gone.
struct Answering {
    responding: Responding,
    _answered: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Answering {
    /// Returns a response that is kept, whether or not a client waits.
    fn of(responding: Responding) -> Self {
        Self { responding, _answered: None }
    }

    /// Waits for the end of the response, as long as the token of its client is good.
    async fn end(&mut self, api: &Api, caller: &Caller) -> Result<Value, Problem> {
        loop {
            let more = tokio::select! {
                more = self.responding.more() => more?,
                () = api.stopping.cancelled() => return Err(EngineError::Stopping.into()),
                error = caller.token_over(&api.engine) => return Err(error.into()),
            };
            drop(self.responding.stream().take());
            if !more {
                return Ok(self.responding.stream().response());
            }
        }
    }
}
