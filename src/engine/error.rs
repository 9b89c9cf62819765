//! The reasons why the engine refuses a request.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    blueprint::Finding,
    protocol::{Failure, failure::kind},
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
        /// Which value: `the input`, `the result`.
        what: &'static str,
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
    /// It does not fit what happened before.
    #[error("{message}")]
    Conflict {
        /// `already_accepted`, `idempotency_mismatch`, `fenced`, `run_closed`, `not_ended`.
        code: &'static str,
        /// For a person.
        message: String,
    },
    /// Too much of something; it may work later.
    #[error("{message}")]
    Busy {
        /// `signal_queue_full`, `too_many_runs`, …
        code: &'static str,
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
        /// What.
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

/// The result after which an attempt is over.
pub(crate) const LAST_RESULT: &str = "the last result that this attempt may send";

impl EngineError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Findings(_) => "blueprint_invalid",
            Self::Invalid { what: "the result" | LAST_RESULT, .. } => "invalid_result",
            Self::Invalid { .. } => "invalid_input",
            Self::BadRequest(_) => "bad_request",
            Self::Refused(refusal) => refusal.code(),
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Conflict { code, .. } | Self::Busy { code, .. } => code,
            Self::Quota(_) => "quota_exceeded",
            Self::TooLarge { .. } => "too_large",
            Self::Guarded(_) => "forbidden",
            Self::Flow(_) => "flow_failed",
            Self::Store(StoreError::Revoked { .. }) => "token_revoked",
            Self::Store(StoreError::KeyUsed { .. }) => "idempotency_mismatch",
            Self::Store(StoreError::Revision { .. }) => "revision_mismatch",
            Self::Store(StoreError::StateRefused { .. }) => "state_refused",
            Self::Store(StoreError::Full) => "storage_full",
            Self::Store(StoreError::Locked) => "storage_locked",
            Self::Store(StoreError::Damaged { .. }) => "damaged",
            Self::Store(_) => "storage",
            Self::Thread { .. } => "internal",
            Self::Keys(_) => "storage",
            Self::Stopping => "stopping",
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
        let data = serde_json::json!({ "code": "quota_exceeded", "quota": self });
        Failure::new(kind, self.to_string()).with_data(data.into())
    }
}
