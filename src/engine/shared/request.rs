//! What the engine can be asked for.

use crate::{
    blueprint::Bundle,
    environment::Scrubber,
    journal::Usage,
    protocol::{Json, RunId, SessionId, TaskId},
    store::{Check, IdempotencyRow, Write},
    token::{Grant, Quotas, Role},
};

/// Who asks: the holder of a token.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The token's subject.
    pub subject: String,
    /// What the token allows.
    pub grant: Grant,
    /// The token's id; revoking it refuses what is under way.
    pub jti: String,
    /// When the token ends, in Unix milliseconds; a token made from it ends no later.
    pub expires_ms: u64,
    /// The session that it speaks for.
    pub session: Option<SessionId>,
}

/// Who reports on an attempt: the bearer of its handle or of a token for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The run's number.
    pub run: u64,
    /// The step's number.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// The run's epoch, as the bearer says.
    pub epoch: u32,
    /// The run's nonce, as the bearer says; absent for a session, whose tasks the host keeps.
    pub nonce: Option<u64>,
    /// The token's id, where it is one.
    pub jti: Option<String>,
    /// The verbs and scopes, where a token narrows them.
    pub grant: Option<Grant>,
    /// The session that has the attempt, where it says so itself.
    pub session: Option<SessionId>,
}

/// Who is at the door.
#[derive(Debug, Clone)]
pub enum Bearer {
    /// A token for the API.
    Caller(Caller),
    /// A token or handle for one attempt.
    Holder(Holder),
}

/// A key that makes a repetition harmless, with the hash of the body that came with it.
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
    /// What goes into the batch of the effect: the key must be free, and from then on it has `answer`.
    pub(crate) fn keep(&self, principal: &str, answer: String, now_ms: u64) -> (Check, Write) {
        let (principal, route) = (principal.to_owned(), self.route.to_owned());
        let (key, body) = (self.key.clone(), self.body.clone());
        let check =
            Check::KeyFree { principal: principal.clone(), route: route.clone(), key: key.clone() };
        let row = IdempotencyRow { principal, route, key, body, answer, created_ms: now_ms };
        (check, Write::PutIdempotency(row))
    }
}

/// What a run executes.
#[derive(Debug, Clone)]
pub enum Program {
    /// `name`, `name@hash-prefix`.
    Named(String),
    /// Source that came with the request; it is stored by its hash and moves no name.
    Bundle(Bundle),
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// What it executes.
    pub program: Program,
    /// Its input; null for none.
    pub input: Json,
    /// What started it.
    pub trigger: Json,
    /// Where its child processes run.
    pub workdir: Option<String>,
    /// The session that takes every task.
    pub delegate: Option<SessionId>,
    /// Which session holds which operator.
    pub seats: std::collections::BTreeMap<String, SessionId>,
}

/// What a worker reports.
#[derive(Debug, Clone)]
pub struct Report {
    /// The result, or the failure.
    pub verdict: Verdict,
    /// What the work used.
    pub usage: Option<Usage>,
    /// Declared effects: a JSON array, empty for none.
    pub effects: Vec<serde_json::Value>,
    /// The hash of the body, for its repetition.
    pub body_hash: String,
    /// The body itself, kept where it is refused.
    pub body: String,
    /// The worker's own key for this report.
    pub key: Option<String>,
}

impl Report {
    /// The same without secrets.
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

/// How a worker says that it went.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// Done, with this value.
    Done(Json),
    /// Failed.
    Failed {
        /// One line for a person.
        message: String,
        /// Whether another attempt may help.
        retryable: bool,
        /// Anything more.
        data: Option<Json>,
    },
}

/// What a person says to a task.
#[derive(Debug, Clone)]
pub enum Answer {
    /// This is the output.
    Output(Json),
    /// No.
    Reject {
        /// Why.
        reason: String,
    },
}

/// A token to make.
#[derive(Debug, Clone)]
pub struct MintToken {
    /// Its role.
    pub role: Role,
    /// Only these verbs; all of the role if absent.
    pub verbs: Option<Vec<String>>,
    /// Verbs beside those, which the role has only where a token names them.
    pub extra_verbs: Vec<String>,
    /// Its scopes; the caller's own if absent.
    pub scopes: Option<Vec<String>>,
    /// How long it lives, in milliseconds.
    pub ttl_ms: u64,
    /// Whose it is; its role if absent.
    pub name: Option<String>,
    /// How much may be done and kept under it; bounded by the caller's own quotas in any case.
    pub quotas: Quotas,
}

/// A made token.
#[derive(Debug, Clone)]
pub struct Minted {
    /// The token itself, shown once.
    pub token: String,
    /// Its id.
    pub jti: String,
    /// When it ends, in Unix milliseconds.
    pub expires_ms: u64,
}

/// What was given a new run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The run.
    pub run: RunId,
    /// Whether an earlier request with the same key had started it.
    pub repeated: bool,
}

/// A run that was made, as far as whoever made it may see it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(untagged)]
pub enum Made {
    /// All of it.
    Seen(Box<crate::engine::RunView>),
    /// Its id alone: the token may start runs, and not read this one.
    Hidden {
        /// The run.
        id: RunId,
    },
}

impl<'de> serde::Deserialize<'de> for Made {
    /// Takes the whole text first: a view has values in it that are kept as they are written, and
    /// these are not found any more in what serde puts aside for an untagged choice.
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
    /// The run's id.
    pub fn id(&self) -> RunId {
        match self {
            Self::Seen(view) => view.id,
            Self::Hidden { id } => *id,
        }
    }

    /// The run, if it may be seen.
    pub fn view(self) -> Option<crate::engine::RunView> {
        match self {
            Self::Seen(view) => Some(*view),
            Self::Hidden { .. } => None,
        }
    }
}

/// A task that a queue worker was given.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The task.
    pub task: TaskId,
    /// Its bearer.
    pub handle: String,
    /// When the lease ends without a heartbeat, in Unix milliseconds.
    pub lease_ms: u64,
}
