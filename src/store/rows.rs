//! The rows beside the journal, as plain data.

use serde::{Deserialize, Serialize};

use super::{Errand, StoreError};
use crate::{
    blueprint::Bundle,
    protocol::{RunId, StoreOptions, Tags},
};

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Accepted, not started.
    Queued,
    /// At least one of its steps is in progress.
    Running,
    /// Waiting for a time, a signal or a person.
    Waiting,
    /// Paused by a person, a program or the engine.
    Paused,
    /// Running its compensations.
    Compensating,
    /// Ended with a value.
    Completed,
    /// Ended with a failure.
    Failed,
    /// Canceled.
    Canceled,
}

impl RunStatus {
    /// All statuses, in the order of a run's life.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Waiting,
        Self::Paused,
        Self::Compensating,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
    ];

    /// Returns true if the run has ended.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting | Self::Paused | Self::Compensating => {
                false
            }
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }

    /// Returns the word used in APIs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Compensating => "compensating",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Parses the word used in APIs.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

/// The header of a run: its data in lists, and the end of its journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The run's number.
    pub num: u64,
    /// When it was created, in Unix milliseconds. The run's id consists of this time and `num`.
    pub created_ms: u64,
    /// A random number from the run's creation, part of its handles. A run that gets the same
    /// number after a rollback has another nonce. 0 if a release without nonces created the run.
    pub nonce: u64,
    /// The blueprint's name.
    pub blueprint: String,
    /// The blueprint's hash, in hex.
    pub hash: String,
    /// The status.
    pub status: RunStatus,
    /// The last status of the flow (`ctx:status`).
    pub status_text: Option<String>,
    /// Between 0 and 1.
    #[serde(with = "super::exact::number")]
    pub progress: Option<f64>,
    /// The lsn of the last entry.
    pub cursor: u64,
    /// The number of the last entry.
    pub seq: u32,
    /// The number of steps scheduled.
    pub steps: u32,
    /// The number of steps ended.
    pub steps_done: u32,
    /// When the engine must load the run by itself, in Unix milliseconds. 0 means at every start.
    pub wake_at_ms: Option<u64>,
    /// Increases when the run changes hands. Attempts with an older epoch are fenced.
    pub epoch: u32,
    /// The run and step that called it.
    pub parent: Option<(u64, u32)>,
    /// The subject that started it.
    pub principal: String,
    /// When the header last changed, in Unix milliseconds.
    pub updated_ms: u64,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// The reason why it failed, was canceled or is paused: a failure as JSON.
    pub error: Option<String>,
    /// The things it waits for: a JSON array.
    pub waiting_on: Option<String>,
    /// The approximate bytes it stores: its journal, its own state and its files.
    pub bytes: u64,
    /// Its tags.
    pub tags: Tags,
    /// Its agents and its usage, as of its last change of more than counters: a [`Used`] as JSON.
    ///
    /// [`Used`]: super::Used
    pub used: Option<String>,
}

/// Returns a random nonce for a new run. Never 0, which stands for a run without one.
pub fn fresh_nonce() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The fixed bits of the two halves are at different positions.
    (high ^ low).max(1)
}

impl Header {
    /// Returns the header of a new run, before its first entry.
    pub fn fresh(num: u64, created_ms: u64) -> Self {
        Self {
            num,
            created_ms,
            nonce: fresh_nonce(),
            blueprint: String::new(),
            hash: String::new(),
            status: RunStatus::Queued,
            status_text: None,
            progress: None,
            cursor: 0,
            seq: 0,
            steps: 0,
            steps_done: 0,
            wake_at_ms: None,
            epoch: 1,
            parent: None,
            principal: String::new(),
            updated_ms: created_ms,
            ended_ms: None,
            error: None,
            waiting_on: None,
            bytes: 0,
            tags: Tags::default(),
            used: None,
        }
    }

    /// Returns the run's id.
    pub fn id(&self) -> RunId {
        RunId::new(self.num, self.created_ms)
    }
}

/// The charge of a run to the token that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeRow {
    /// The run.
    pub run: u64,
    /// The token's id.
    pub jti: String,
    /// Bytes of its entries and files.
    pub bytes: u64,
    /// Model tokens used.
    pub tokens: u64,
    /// Cost in billionths of a US dollar.
    pub nano_usd: u64,
}

impl ChargeRow {
    /// Creates a charge of zero.
    pub fn new(run: u64, jti: &str) -> Self {
        Self { run, jti: jti.to_owned(), bytes: 0, tokens: 0, nano_usd: 0 }
    }
}

/// The sum of the charges of all runs that were started with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChargeSum {
    /// The token's id.
    pub jti: String,
    /// Bytes of the runs that still exist.
    pub bytes: u64,
    /// Model tokens, including deleted runs.
    pub tokens: u64,
    /// Cost, including deleted runs, in billionths of a US dollar.
    pub nano_usd: u64,
    /// The number of runs created since the requested time.
    pub starts: u64,
}

/// A value of state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRow {
    /// The scope.
    pub scope: String,
    /// The key.
    pub key: String,
    /// JSON.
    pub value: String,
    /// Increases with every write.
    pub revision: u64,
    /// When it was written, in Unix milliseconds.
    pub updated_ms: u64,
    /// The expiry, in Unix milliseconds.
    pub expires_ms: Option<u64>,
    /// Hints about the value.
    pub hints: StoreOptions,
}

impl StateRow {
    /// Returns true if the value has not expired.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }
}

/// A blueprint version.
#[derive(Debug, Clone, PartialEq)]
pub struct BlueprintRow {
    /// The bundle's hash, in hex.
    pub hash: String,
    /// The name that the blueprint declares.
    pub name: String,
    /// The bundle, encoded.
    pub bundle: Vec<u8>,
    /// When it was first stored, in Unix milliseconds.
    pub created_ms: u64,
    /// The grant of the publisher at that time, as JSON. Absent if the version only came with a
    /// request to run it.
    pub publisher: Option<String>,
}

impl BlueprintRow {
    /// Decodes the bundle and verifies its hash.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] if it is not the bundle that was stored.
    pub fn open(&self) -> Result<Bundle, StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            what: format!("blueprint {}@{}", self.name, self.hash),
            reason: format!("{reason}; publish it again, or bring it back from a backup"),
        };
        let bundle = Bundle::decode(&self.bundle).map_err(|error| damaged(error.to_string()))?;
        match bundle.hash() {
            hash if hash == self.hash => Ok(bundle),
            other => Err(damaged(format!("its files have the hash {other}"))),
        }
    }
}

/// Checks that bytes have the given hash (BLAKE3, hex).
///
/// # Errors
/// Returns [`StoreError::Damaged`] if they do not.
pub(super) fn is_blob(hash: &str, data: &[u8]) -> Result<(), StoreError> {
    let found = blake3::hash(data).to_hex();
    if found.as_str() == hash {
        return Ok(());
    }
    Err(StoreError::Damaged {
        what: format!("blob {hash}"),
        reason: format!("its {} bytes have the hash {found}", data.len()),
    })
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRow {
    /// The run.
    pub run: u64,
    /// The file's number within the run.
    pub n: u32,
    /// The name shown to people.
    pub name: String,
    /// The blob's hash, BLAKE3 in hex.
    pub hash: String,
    /// The size in bytes.
    pub size: u64,
    /// When it was created, in Unix milliseconds. The artifact's id consists of this time, `run`
    /// and `n`.
    pub created_ms: u64,
    /// The step that made it.
    pub step: u32,
    /// The attempt that made it.
    pub attempt: u32,
    /// True if its attempt was accepted.
    pub published: bool,
}

/// An issued token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRow {
    /// The token's id.
    pub jti: String,
    /// The role.
    pub role: String,
    /// The claims, as JSON.
    pub claims: String,
    /// The id of the token that it was made from.
    pub parent: Option<String>,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// When it expires, in Unix milliseconds.
    pub expires_ms: u64,
    /// When it was revoked, in Unix milliseconds.
    pub revoked_ms: Option<u64>,
}

/// The response stored under an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub struct IdempotencyRow {
    /// The token's subject.
    pub principal: String,
    /// The route.
    pub route: String,
    /// The key.
    pub key: String,
    /// The hash of the request's body, in hex.
    pub body: String,
    /// The response: JSON.
    pub answer: String,
    /// When it was stored, in Unix milliseconds.
    pub created_ms: u64,
}

/// A message in transit from one run to another, or from a run to a store of somebody else's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboxRow {
    /// The sending run.
    pub run: u64,
    /// The sending step. A number of its own for a change.
    pub step: u32,
    /// The receiving run; 0 for a change.
    pub to: u64,
    /// The message.
    pub errand: Errand,
}

/// The number of refused reports of one attempt that are kept, the first ones: a worker that reports
/// again and again must not fill the disk.
pub const MOST_EVIDENCE: usize = 16;

/// A refused report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRow {
    /// The run.
    pub run: u64,
    /// The step.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// The time, in Unix milliseconds.
    pub at_ms: u64,
    /// The code of the refusal.
    pub code: String,
    /// The refused body, cut to 64 KiB.
    pub body: String,
}

/// The disk space of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in use.
    pub used: u64,
    /// Free bytes inside the file, which are reused before the file grows.
    pub free: u64,
    /// True if deletions left rows for [`Write::Tidy`](super::Write::Tidy).
    pub debris: bool,
}

/// An ended run that nothing open depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    /// The run's number.
    pub num: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: u64,
}

/// A session of a connected operator.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// The session's id: `ses_…`.
    pub id: String,
    /// The operator's name.
    pub operator: String,
    /// The subject that opened it.
    pub principal: String,
    /// The token that opened it. Revoking it ends the session.
    pub jti: String,
    /// When the opener's own token expires, in Unix milliseconds. No token of the session outlives
    /// it.
    pub until_ms: u64,
    /// When it was opened, in Unix milliseconds.
    pub created_ms: u64,
    /// When its last token expires and the session ends, in Unix milliseconds.
    pub expires_ms: u64,
    /// True if its frames contain the prompts.
    pub direct: bool,
    /// The number of its last frame.
    pub last_seq: u64,
    /// The number of the last frame that it acknowledged.
    pub acked_seq: u64,
    /// When it was closed, in Unix milliseconds.
    pub closed_ms: Option<u64>,
    /// The reason for closing.
    pub reason: Option<String>,
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// The line's number, from 1 and without gaps.
    pub seq: u64,
    /// The time, as RFC 3339.
    pub at: String,
    /// The event: JSON.
    pub line: String,
    /// The hash over the previous hash, the number, the time and the line, in hex.
    pub hash: String,
}

/// A frame that a session has not acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameRow {
    /// The session.
    pub session: String,
    /// The number within the session, from 1 and without gaps.
    pub seq: u64,
    /// The method: `task/spawn`, `task/cancel`, `task/answer`.
    pub method: String,
    /// The run.
    pub run: u64,
    /// The step.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// When the step was scheduled, in Unix milliseconds.
    pub scheduled_ms: u64,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The run's nonce, for the handle of a `task/spawn`; 0 in any other frame.
    pub nonce: u64,
    /// The timeout of the attempt, counted from its delivery, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The parameters as a JSON object, without those that are computed at delivery.
    pub params: String,
}
