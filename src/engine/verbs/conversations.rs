//! Conversations that are stored under an id of their own, and continued by one response after the
//! other.
//!
//! A conversation is a value of state, in the scope of a session of its id. While a response
//! continues it, the run is named in it; whoever reads it next takes that answer in, once. So an
//! answer is added exactly once, also over a crash, and no two responses continue it at a time.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    engine::{
        Caller, EngineError, WaitFor, turn::passage::Read, verbs::begin::FOREVER,
        verbs::engine::ResponseVerbs,
    },
    protocol::{Code, RunId, Scope, SessionId, StoreOptions},
    respond::open_responses::MOST_ITEMS,
    store::{StateAct, StateChange, StoreError},
    token::{Need, Verb},
};

/// The key of a conversation in its scope.
const KEY: &str = "conversation";
/// The prefix of the ids of conversations.
const PREFIX: &str = "conv_";
/// The number of tries of a change that conflicts with others.
const TRIES: usize = 16;

/// A conversation as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredConversation {
    /// Its id.
    #[serde(skip)]
    pub id: String,
    #[serde(skip)]
    revision: u64,
    /// The time of creation, in Unix milliseconds.
    pub created_ms: u64,
    /// The metadata of its owner.
    pub metadata: Map<String, Value>,
    /// Its items, the oldest first.
    pub items: Vec<Value>,
    /// The run that continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    continued_by: Option<RunId>,
}

impl StoredConversation {
    /// Returns true if a response continues it at the moment.
    pub fn is_continued(&self) -> bool {
        self.continued_by.is_some()
    }

    /// Returns the conversation without the items that are not in `left`, if it has some.
    fn shortened_as(mut self, left: &Self) -> Option<Self> {
        let left: HashSet<&str> = left.items.iter().filter_map(|it| it["id"].as_str()).collect();
        let had = self.items.len();
        self.items.retain(|it| it["id"].as_str().is_none_or(|id| left.contains(id)));
        (self.items.len() < had).then_some(self)
    }
}

impl ResponseVerbs<'_> {
    /// Stores a conversation under a new id.
    ///
    /// # Errors
    /// Fails when the caller may not, or it is too large.
    pub async fn create_conversation(
        self,
        caller: &Caller,
        metadata: Map<String, Value>,
        items: Vec<Value>,
    ) -> Result<StoredConversation, EngineError> {
        let conversation = StoredConversation {
            id: format!("{PREFIX}{}", uuid::Uuid::now_v7().simple()),
            revision: 0,
            created_ms: self.engine.shared().clock.now_ms(),
            metadata,
            items,
            continued_by: None,
        };
        reaches(caller, Verb::RunStart, &conversation.id)?;
        let revision = self.put_conversation(caller, &conversation).await?;
        Ok(StoredConversation { revision, ..conversation })
    }

    /// A conversation, with the answer that it waited for if that is over.
    ///
    /// # Errors
    /// Fails when the caller may not, or there is none.
    pub async fn conversation(
        self,
        caller: &Caller,
        verb: Verb,
        id: &str,
    ) -> Result<StoredConversation, EngineError> {
        self.change_conversation(caller, verb, id, |_| Ok(false)).await
    }

    /// Changes a conversation; `change` may be called again, and says whether there is anything to
    /// store.
    ///
    /// # Errors
    /// Fails when the caller may not, there is none, it would be too large, or `change` refuses.
    pub async fn change_conversation(
        self,
        caller: &Caller,
        verb: Verb,
        id: &str,
        change: impl Fn(&mut StoredConversation) -> Result<bool, EngineError>,
    ) -> Result<StoredConversation, EngineError> {
        reaches(caller, verb, id)?;
        for _ in 0..TRIES {
            let mut conversation = self.read_conversation(caller, id).await?;
            let before = conversation.is_continued().then(|| conversation.clone());
            let taken_in = self.take_answer(caller, &mut conversation).await?;
            let had = conversation.items.len();
            let changed = change(&mut conversation)?;
            if !(changed | taken_in) {
                return Ok(conversation);
            }
            // An answer is taken in beyond the limit too: then items can be deleted.
            if conversation.items.len() > MOST_ITEMS.max(had) {
                let message = format!(
                    "the conversation has {} items; at most {MOST_ITEMS} are kept; compact it",
                    conversation.items.len()
                );
                return Err(EngineError::BadRequest(message));
            }
            let done = match (self.put_conversation(caller, &conversation).await, before) {
                // With its answer it is too large to be stored: it is shown all the same, and what
                // was there before is shortened.
                (
                    Err(EngineError::Store(refused @ StoreError::StateRefused { .. })),
                    Some(before),
                ) => {
                    if !changed {
                        return Ok(conversation);
                    }
                    match before.shortened_as(&conversation) {
                        Some(shorter) => self.put_conversation(caller, &shorter).await,
                        None => Err(EngineError::Store(refused)),
                    }
                }
                (done, _) => done,
            };
            match done {
                Err(EngineError::Store(StoreError::Revision { .. })) => {}
                done => {
                    conversation.revision = done?;
                    return Ok(conversation);
                }
            }
        }
        let message = format!("the conversation {id} changes all the time");
        Err(EngineError::Busy { code: Code::Busy, message, retry_after_s: 1 })
    }

    /// Deletes a conversation; the responses that continued it stay.
    ///
    /// # Errors
    /// Fails when the caller may not, or there is none.
    pub async fn delete_conversation(self, caller: &Caller, id: &str) -> Result<(), EngineError> {
        reaches(caller, Verb::RunDelete, id)?;
        self.read_conversation(caller, id).await?;
        self.change_stored(caller, id, None, StateAct::Delete).await.map(drop)
    }

    /// Says that a run continues a conversation as it was read.
    ///
    /// # Errors
    /// Fails when it has changed meanwhile, or is gone.
    pub async fn continue_conversation(
        self,
        caller: &Caller,
        mut conversation: StoredConversation,
        run: RunId,
    ) -> Result<(), EngineError> {
        conversation.continued_by = Some(run);
        self.put_conversation(caller, &conversation).await.map(drop)
    }

    /// Waits until a run has ended, and takes its answer into the conversation that it continues.
    pub async fn answer_conversation(self, caller: &Caller, id: &str, run: RunId) {
        loop {
            match self.engine.wait_for(run, WaitFor::Ended, FOREVER).await {
                Ok(view) if view.status.is_ended() => break,
                Ok(_) => {}
                // Whoever reads the conversation next takes it in.
                Err(_) => return,
            }
        }
        if let Err(error) = self.conversation(caller, Verb::RunStart, id).await {
            tracing::warn!(%run, conversation = id, %error, "could not add an answer to its conversation");
        }
    }

    /// Adds the answer that a conversation waits for, if it is over; says whether anything changed.
    async fn take_answer(
        self,
        caller: &Caller,
        conversation: &mut StoredConversation,
    ) -> Result<bool, EngineError> {
        let Some(run) = conversation.continued_by else { return Ok(false) };
        match self.response_of(run, &caller.jti).await {
            // It was deleted, and its answer with it.
            Err(EngineError::NotFound { .. }) => {}
            // Whoever may write the state can name any run, also one that they may not read.
            Ok(stream) if !stream.trigger().continues(&conversation.id) => {}
            Ok(stream) if !stream.is_over() => return Ok(false),
            // What failed or was canceled said nothing.
            Ok(stream) if matches!(stream.status(), "failed" | "cancelled") => {}
            Ok(stream) => {
                let trigger = stream.trigger();
                let before = trigger.conversation.len().saturating_sub(trigger.own);
                conversation.items.extend(stream.conversation().into_iter().skip(before));
            }
            Err(error) => return Err(error),
        }
        conversation.continued_by = None;
        Ok(true)
    }

    async fn read_conversation(
        self,
        caller: &Caller,
        id: &str,
    ) -> Result<StoredConversation, EngineError> {
        let missing = || {
            let id = id.chars().take(64).collect();
            EngineError::NotFound { what: "conversation", id }
        };
        if !id.starts_with(PREFIX) {
            return Err(missing());
        }
        let passage = self.engine.stored_state().passage(&caller.subject);
        let given = passage.read(Read::Value, scope(id).to_string(), KEY.to_owned()).await?;
        let row = given.rows.value.ok_or_else(missing)?;
        let conversation: StoredConversation = given.value.decode().map_err(|error| {
            EngineError::BadRequest(format!("read the conversation {id}: {error}"))
        })?;
        Ok(StoredConversation { id: id.to_owned(), revision: row.revision, ..conversation })
    }

    /// Stores a conversation over the revision that was read; returns the new one.
    async fn put_conversation(
        self,
        caller: &Caller,
        conversation: &StoredConversation,
    ) -> Result<u64, EngineError> {
        let value = serde_json::to_value(conversation).expect("a conversation is plain data");
        let act = StateAct::set(&value, StoreOptions::default());
        self.change_stored(caller, &conversation.id, Some(conversation.revision), act).await
    }

    async fn change_stored(
        self,
        caller: &Caller,
        id: &str,
        if_revision: Option<u64>,
        act: StateAct,
    ) -> Result<u64, EngineError> {
        let scope = scope(id);
        let (key, text) = (KEY.to_owned(), scope.to_string());
        let change = StateChange { scope: text, key, if_revision, act };
        let change = self
            .engine
            .stored_state()
            .passage(&caller.subject)
            .change(change)
            .map_err(EngineError::Guarded)?;
        let changed = self
            .engine
            .stored_state()
            .change_any(vec![(scope, change)], Some(caller.jti.clone()))
            .await?;
        Ok(changed.first().map_or(0, |changed| changed.revision))
    }
}

fn scope(id: &str) -> Scope {
    Scope::Session(SessionId::from(id))
}

fn reaches(caller: &Caller, verb: Verb, id: &str) -> Result<(), EngineError> {
    let scope = scope(id).to_string();
    Ok(caller.grant.check(verb, &[Need::State { scope: &scope, key: KEY }])?)
}
