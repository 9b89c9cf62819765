//! The requests to the engine.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use crate::{
    blueprint::Bundle,
    environment::Scrubber,
    journal::Usage,
    protocol::{Json, RunId, SessionId, Tags, TaskId, TraceParent},
    store::{Check, IdempotencyRow, Write},
    token::{Grant, Quotas, Refusal, Role, Verb, permits},
};

/// The caller: the holder of a token.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The token's subject.
    pub subject: String,
    /// The grant of the token.
    pub grant: TokenGrant,
    /// The token's id; revoking it refuses requests in progress.
    pub jti: String,
    /// The expiry of the token, in Unix milliseconds; a token derived from it expires no later.
    pub expires_ms: u64,
    /// The session of the token.
    pub session: Option<SessionId>,
    /// The span of a distributed trace that the request is a part of. A run that it starts belongs to
    /// that trace.
    pub trace: Option<TraceParent>,
}

/// The grant of a token, which all requests of the token share, with its JSON.
#[derive(Clone)]
pub struct TokenGrant(Arc<(Arc<Grant>, OnceLock<Json>)>);

impl TokenGrant {
    /// Returns the grant, for a run that is started with it.
    pub(crate) fn shared(&self) -> Arc<Grant> {
        Arc::clone(&self.0.0)
    }

    /// Returns the grant as the start of a run stores it.
    pub(crate) fn json(&self) -> Json {
        let (grant, json) = &*self.0;
        json.get_or_init(|| Json::encode(&**grant).expect("a grant is plain data")).clone()
    }
}

impl From<Grant> for TokenGrant {
    fn from(grant: Grant) -> Self {
        Self(Arc::new((Arc::new(grant), OnceLock::new())))
    }
}

impl Deref for TokenGrant {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0.0
    }
}

impl fmt::Debug for TokenGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The holder of an attempt: the bearer of its handle or of a token for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The run's number.
    pub run: u64,
    /// The step's number.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// The run's epoch, according to the bearer.
    pub epoch: u32,
    /// The run's nonce, according to the bearer; absent for a session, whose tasks the host tracks.
    pub nonce: Option<u64>,
    /// The token's id, if the bearer is a token.
    pub jti: Option<String>,
    /// The verbs and scopes, if a token narrows them.
    pub grant: Option<Grant>,
    /// The session of the attempt, if it reports itself.
    pub session: Option<SessionId>,
    /// The earlier attempt that the session may mean instead: it named none, and this one was not
    /// delivered. A report or a decline with the key and the body of that attempt's repeats it.
    pub before: Option<u32>,
    /// The token of a request for many attempts, of which this is one.
    pub carrier: Option<Arc<Carrier>>,
}

#[cfg(test)]
impl Holder {
    /// Returns the holder of the handle of a first attempt.
    pub fn of_first(run: u64, step: u32) -> Self {
        Self {
            run,
            step,
            attempt: 1,
            epoch: 1,
            nonce: Some(1),
            jti: None,
            grant: None,
            session: None,
            before: None,
            carrier: None,
        }
    }
}

/// The token of a request that carries the requests of many attempts. It adds no right to their own
/// credentials: it pays for the request, and reaches only attempts of queues that are its.
#[derive(Debug, PartialEq)]
pub struct Carrier {
    /// The token's id; revoking it refuses requests in progress.
    pub jti: String,
    /// The grant of the token.
    pub grant: Grant,
}

impl Holder {
    /// Checks that the holder has a verb. A handle has those of a worker; a session has what the
    /// token that opened it has, and that is checked where its call arrives.
    ///
    /// # Errors
    /// Fails with the refusal.
    pub(crate) fn check(&self, verb: Verb) -> Result<(), Refusal> {
        match &self.grant {
            Some(grant) => grant.check(verb, &[]),
            None if self.session.is_some() || permits(Role::Worker, verb) => Ok(()),
            None => Err(Refusal::Verb { role: Role::Worker, verb }),
        }
    }
}

/// An authenticated bearer.
#[derive(Debug, Clone)]
pub enum Bearer {
    /// A token for the API.
    Caller(Caller),
    /// A token or handle for one attempt.
    Holder(Holder),
}

/// An idempotency key, with the hash of the request's body.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// The route.
    pub route: &'static str,
    /// The key.
    pub key: String,
    /// The body's hash, in hex.
    pub body: String,
}

impl IdempotencyKey {
    /// Returns the check and the write for the batch of the effect: the key must be unused, and is
    /// stored with `answer`.
    pub(crate) fn keep(&self, principal: &str, answer: String, now_ms: u64) -> (Check, Write) {
        let (principal, route) = (principal.to_owned(), self.route.to_owned());
        let (key, body) = (self.key.clone(), self.body.clone());
        let check =
            Check::KeyFree { principal: principal.clone(), route: route.clone(), key: key.clone() };
        let row = IdempotencyRow { principal, route, key, body, answer, created_ms: now_ms };
        (check, Write::PutIdempotency(row))
    }
}

/// The program of a run.
#[derive(Debug, Clone)]
pub enum Program {
    /// `name`, `name@hash-prefix`.
    Named(String),
    /// Source that came with the request; it is stored by its hash and changes no name.
    Bundle(Bundle),
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// The program.
    pub program: Program,
    /// The input; null for none.
    pub input: Json,
    /// The trigger.
    pub trigger: Json,
    /// The working directory of its child processes.
    pub workdir: Option<String>,
    /// The session that takes every task.
    pub delegate: Option<SessionId>,
    /// The session of each operator's seat.
    pub seats: std::collections::BTreeMap<String, SessionId>,
    /// Its tags.
    pub tags: Tags,
}

impl StartRun {
    /// A run of a program without an input, a trigger, sessions and tags.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            input: Json::null(),
            trigger: Json::null(),
            workdir: None,
            delegate: None,
            seats: std::collections::BTreeMap::new(),
            tags: Tags::default(),
        }
    }
}

/// The report of a worker.
#[derive(Debug, Clone)]
pub struct Report {
    /// The result, or the failure.
    pub verdict: Verdict,
    /// The usage.
    pub usage: Option<Usage>,
    /// Declared effects: a JSON array, empty for none.
    pub effects: Vec<serde_json::Value>,
    /// The hash of the body, to detect repetitions.
    pub body_hash: String,
    /// The body itself, stored if it is refused.
    pub body: String,
    /// The worker's own key for this report.
    pub key: Option<String>,
}

impl Report {
    /// Removes secrets.
    pub(crate) fn scrubbed(self, secrets: &Scrubber) -> Self {
        let json = |json: Json| secrets.scrub_json(&json);
        let verdict = match self.verdict {
            Verdict::Done(output) => Verdict::Done(json(output)),
            Verdict::Failed { message, retryable, data } => Verdict::Failed {
                message: secrets.scrub_text(&message),
                retryable,
                data: data.map(json),
            },
        };
        let effects = self.effects.into_iter().map(|effect| json(effect.into()).to_value());
        Self {
            verdict,
            usage: self.usage,
            effects: effects.collect(),
            body_hash: self.body_hash,
            body: json(Json::from_trusted(self.body)).as_str().to_owned(),
            key: self.key.map(|key| secrets.scrub_text(&key)),
        }
    }
}

/// The result of a worker.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The value of a completed task.
    Done(Json),
    /// The failure of a task.
    Failed {
        /// One line for a person.
        message: String,
        /// True if another attempt may succeed.
        retryable: bool,
        /// Additional data.
        data: Option<Json>,
    },
}

/// The answer of a person to a task.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The output.
    Output(Json),
    /// A rejection.
    Reject {
        /// The reason.
        reason: String,
    },
}

/// The answer of a senior to the question of an attempt.
#[derive(Debug, Clone)]
pub struct Advice {
    /// The answer.
    pub answer: Json,
    /// The attempt that was shown; an answer to another one is refused.
    pub attempt: Option<u32>,
    /// The revision that was shown; an answer to another question is refused.
    pub revision: Option<String>,
}

/// A token to mint.
#[derive(Debug, Clone)]
pub struct MintToken {
    /// Its role.
    pub role: Role,
    /// The verbs; all of the role if absent.
    pub verbs: Option<Vec<String>>,
    /// Additional verbs that the role has only if the token lists them.
    pub extra_verbs: Vec<String>,
    /// The scopes; the caller's own if absent.
    pub scopes: Option<Vec<String>>,
    /// The lifetime, in milliseconds.
    pub ttl_ms: u64,
    /// The name of its holder; the role if absent.
    pub name: Option<String>,
    /// The quotas; the caller's own apply in any case.
    pub quotas: Quotas,
}

/// A new token.
#[derive(Debug, Clone)]
pub struct Minted {
    /// The token itself, shown once.
    pub token: String,
    /// Its id.
    pub jti: String,
    /// The expiry, in Unix milliseconds.
    pub expires_ms: u64,
}

/// The response to a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The run.
    pub run: RunId,
    /// True if an earlier request with the same key started it.
    pub repeated: bool,
}

/// A new run, as far as its creator may read it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(untagged)]
pub enum Made {
    /// The whole view.
    Seen(Box<crate::engine::RunView>),
    /// Only the id: the token may start runs, but not read this one.
    Hidden {
        /// The run.
        id: RunId,
    },
}

impl<'de> serde::Deserialize<'de> for Made {
    /// Deserializes the whole text first: a view contains verbatim values, which are lost in
    /// serde's buffer for untagged enums.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Hidden {
            id: RunId,
        }
        let made = Json::deserialize(from)?;
        match made.decode() {
            Ok(view) => Ok(Self::Seen(Box::new(view))),
            Err(error) => match made.decode::<serde_json::Map<String, serde_json::Value>>() {
                Ok(keys) if keys.len() == 1 => {
                    made.decode().map(|Hidden { id }| Self::Hidden { id })
                }
                Ok(_) | Err(_) => Err(error),
            }
            .map_err(serde::de::Error::custom),
        }
    }
}

impl Made {
    /// Returns the run's id.
    pub fn id(&self) -> RunId {
        match self {
            Self::Seen(view) => view.id,
            Self::Hidden { id } => *id,
        }
    }

    /// Returns the view, if it is visible.
    pub fn view(self) -> Option<crate::engine::RunView> {
        match self {
            Self::Seen(view) => Some(*view),
            Self::Hidden { .. } => None,
        }
    }
}

/// A task that was leased to a pull worker.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The task.
    pub task: TaskId,
    /// The handle of the attempt.
    pub handle: String,
    /// The end of the lease without a heartbeat, in Unix milliseconds.
    pub lease_ms: u64,
    /// The span of a distributed trace that the attempt is a part of.
    pub trace: Option<TraceParent>,
    /// The prompt, if it was asked for.
    pub prompt: Option<Box<crate::engine::PromptView>>,
}
