//! The reasons why the engine refuses a request.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    blueprint::Finding,
    protocol::{Code, Failure, failure::kind},
    store::StoreError,
    token::{Quota, Refusal},
};

/// A refusal, with a stable code.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such thing.
    #[error("{what} {id} not found")]
    NotFound {
        /// The kind: `run`, `task`, `blueprint`, …
        what: &'static str,
        /// The id or name.
        id: String,
    },
    /// The blueprint has errors.
    #[error("compile the blueprint: {} finding(s)", .0.len())]
    Findings(Vec<Finding>),
    /// A value does not match its schema.
    #[error("accept {what}: {}", violations.first().map_or_else(String::new, |v| format!("{}: {}", v.path, v.message)))]
    Invalid {
        /// Which value.
        what: Checked,
        /// Every breach that was found.
        violations: Vec<Breach>,
    },
    /// The request itself makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// The caller may not.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The bearer is not valid.
    #[error("authenticate: {0}")]
    Unauthenticated(String),
    /// The request conflicts with the current state.
    #[error("{message}")]
    Conflict {
        /// The reason: `fenced`, `run_closed`, ….
        code: Code,
        /// For a person.
        message: String,
    },
    /// Too much of something; it may work later.
    #[error("{message}")]
    Busy {
        /// Of what: `signal_queue_full`, `too_many_runs`, ….
        code: Code,
        /// For a person.
        message: String,
        /// The time after which a retry may succeed, in seconds.
        retry_after_s: u64,
    },
    /// A quota of the caller's token, or of one that it was made from, is used up.
    #[error("start a run: {0}")]
    Quota(Box<crate::engine::Exceeded>),
    /// Something is larger than it may be.
    #[error("accept {what} of {size} bytes: at most {limit} are allowed")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A layer of middleware does not let it pass.
    #[error(transparent)]
    Guarded(crate::protocol::Failure),
    /// A function of the flow failed.
    #[error(transparent)]
    Flow(#[from] crate::protocol::Failure),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gave no thread, without which the engine cannot start.
    #[error("start {what}: {source}")]
    Thread {
        /// The purpose of the thread.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The keys could not be kept.
    #[error("keep the keys: {0}")]
    Keys(String),
    /// The host is stopping.
    #[error("the host is shutting down")]
    Stopping,
}

/// One place where a value does not match its schema.
#[derive(Debug, Clone, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct Breach {
    /// The path: `$.steps[2].name`.
    pub path: String,
    /// The problem.
    pub message: String,
}

/// A value that has to match a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The input of a run, a signal or a query.
    Input,
    /// The result of an attempt.
    Result,
    /// The result after which an attempt is over.
    LastResult,
}

impl Checked {
    /// Returns the code of a value that does not match.
    pub fn code(self) -> Code {
        match self {
            Self::Input => Code::InvalidInput,
            Self::Result | Self::LastResult => Code::InvalidResult,
        }
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Input => "the input",
            Self::Result => "the result",
            Self::LastResult => "the last result that this attempt may send",
        })
    }
}

impl EngineError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::Findings(_) => Code::BlueprintInvalid,
            Self::Invalid { what, .. } => what.code(),
            Self::BadRequest(_) => Code::BadRequest,
            Self::Refused(refusal) => refusal.code(),
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::Conflict { code, .. } | Self::Busy { code, .. } => *code,
            Self::Quota(_) => Code::QuotaExceeded,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::Guarded(_) => Code::Forbidden,
            Self::Flow(_) => Code::FlowFailed,
            Self::Store(StoreError::Revoked { .. }) => Code::TokenRevoked,
            Self::Store(StoreError::KeyUsed { .. }) => Code::IdempotencyMismatch,
            Self::Store(StoreError::Revision { .. }) => Code::RevisionMismatch,
            Self::Store(StoreError::StateRefused { .. }) => Code::StateRefused,
            Self::Store(StoreError::Full) => Code::StorageFull,
            Self::Store(StoreError::Locked) => Code::StorageLocked,
            Self::Store(StoreError::Unfit { .. }) => Code::Conflict,
            Self::Store(StoreError::Busy | StoreError::Away { .. } | StoreError::Fenced) => {
                Code::StorageAway
            }
            Self::Store(StoreError::Damaged { .. }) => Code::Damaged,
            Self::Store(_) | Self::Keys(_) => Code::Storage,
            Self::Thread { .. } => Code::Internal,
            Self::Stopping => Code::Stopping,
        }
    }
}

/// A quota that is used up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Exceeded {
    /// The token whose quota it is, by its id.
    pub token: String,
    /// Which: `open_runs`, `starts_per_minute`, `stored_bytes`, `tokens` or `usd`.
    #[schema(value_type = String)]
    pub quota: Quota,
    /// The amount used; in US dollars, a decimal text.
    pub used: String,
    /// The limit.
    pub allowed: String,
    /// The time after which a retry may succeed, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { token, quota, used, allowed, .. } = self;
        write!(f, "the quota {quota} of token {token} is used up: {used} of {allowed}")
    }
}

impl Exceeded {
    /// The failure of what it stops within a run.
    pub(crate) fn failure(&self) -> Failure {
        let kind = match self.quota {
            Quota::Tokens | Quota::Usd => kind::BUDGET,
            Quota::OpenRuns | Quota::StartsPerMinute | Quota::StoredBytes => kind::LIMIT,
        };
        let data = serde_json::json!({ "code": Code::QuotaExceeded.as_str(), "quota": self });
        Failure::new(kind, self.to_string()).with_data(data.into())
    }
}
