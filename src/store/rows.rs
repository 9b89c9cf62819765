//! The rows beside the journal, as plain data.

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::{
    blueprint::Bundle,
    protocol::{RunId, StoreOptions},
};

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Accepted, not begun.
    Queued,
    /// Something of it is being worked on.
    Running,
    /// It waits for a time, a signal or somebody.
    Waiting,
    /// Somebody, or the engine, let it rest.
    Paused,
    /// It runs its compensations.
    Compensating,
    /// It ended with a value.
    Completed,
    /// It ended with a failure.
    Failed,
    /// It was canceled.
    Canceled,
}

impl RunStatus {
    /// Every status, in the order of a run's life.
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

    /// Whether the run has ended.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting | Self::Paused | Self::Compensating => {
                false
            }
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }

    /// The word that APIs use.
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

    /// The status that a word stands for.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

/// A run's header: what lists show, and where its history ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The run's number.
    pub num: u64,
    /// When it was created, in Unix milliseconds; with `num` it makes the run's id.
    pub created_ms: u64,
    /// A random number from its creation on, which its handles carry: another run that gets the
    /// same number after a rollback has another one. 0 if it was created by a release without them.
    pub nonce: u64,
    /// The blueprint's name.
    pub blueprint: String,
    /// The blueprint's hash, in hex.
    pub hash: String,
    /// Where it stands.
    pub status: RunStatus,
    /// What the flow last said with `ctx:status`.
    pub status_text: Option<String>,
    /// Between 0 and 1.
    pub progress: Option<f64>,
    /// The lsn of its last entry.
    pub cursor: u64,
    /// The number of its last entry.
    pub seq: u32,
    /// How many steps were scheduled.
    pub steps: u32,
    /// How many of them ended.
    pub steps_done: u32,
    /// When it has to be looked at by itself, in Unix milliseconds; 0 is at every boot.
    pub wake_at_ms: Option<u64>,
    /// Counts up when the run changes hands; old attempts are fenced by it.
    pub epoch: u32,
    /// The run and step that called it.
    pub parent: Option<(u64, u32)>,
    /// Who started it.
    pub principal: String,
    /// When its header last changed, in Unix milliseconds.
    pub updated_ms: u64,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// Why it failed or was canceled or rests: a failure as JSON.
    pub error: Option<String>,
    /// What it waits for: a JSON array.
    pub waiting_on: Option<String>,
    /// About how many bytes it stores: its journal, its own state and its files.
    pub bytes: u64,
}

/// A random number for a new run; never 0, which stands for a run that has none.
pub fn fresh_nonce() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The fixed bits of the two halves are not in the same places.
    (high ^ low).max(1)
}

impl Header {
    /// That of a run that is made now, before its first entry.
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
        }
    }
}

/// What a run is charged, to the token that it was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeRow {
    /// The run.
    pub run: u64,
    /// The token's id.
    pub jti: String,
    /// Bytes of its entries and files.
    pub bytes: u64,
    /// Tokens that it used of models.
    pub tokens: u64,
    /// Money that it used, in billionths of a US dollar.
    pub nano_usd: u64,
}

impl ChargeRow {
    /// A run that was charged nothing yet.
    pub fn new(run: u64, jti: &str) -> Self {
        Self { run, jti: jti.to_owned(), bytes: 0, tokens: 0, nano_usd: 0 }
    }
}

/// What all runs that were started with a token were charged together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChargeSum {
    /// The token's id.
    pub jti: String,
    /// Bytes of the runs that are there.
    pub bytes: u64,
    /// Tokens, of those too that were deleted.
    pub tokens: u64,
    /// Money, of those too that were deleted, in billionths of a US dollar.
    pub nano_usd: u64,
    /// Runs that were created since the time that was asked for.
    pub starts: u64,
}

/// Where a page of a run's history lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMark {
    /// The lsn of its last entry.
    pub last: u64,
    /// Its entries have numbers over this one.
    pub after: u32,
    /// The number of its last entry.
    pub upto: u32,
    /// The bytes of its entries, as they are stored.
    pub bytes: usize,
}

impl PageMark {
    /// A page without entries yet, which is to end with a row.
    pub(crate) fn ending(last: u64, upto: u32) -> Self {
        Self { last, after: upto, upto, bytes: 0 }
    }

    /// Takes the row before the first one; says whether there was room.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let entries = self.upto - self.after;
        if entries > 0 && (entries >= super::PAGE_ENTRIES || self.bytes + bytes > super::PAGE_BYTES)
        {
            return false;
        }
        self.after = self.after.saturating_sub(1);
        self.bytes += bytes;
        true
    }
}

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only these statuses; all if empty.
    pub status: Vec<RunStatus>,
    /// Only this blueprint.
    pub blueprint: Option<String>,
    /// Only runs created at or after this time, in Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Only runs that are older than this one (the cursor of the page before).
    pub before: Option<RunId>,
    /// At most this many.
    pub limit: usize,
}

/// How far an open task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPhase {
    /// Waits for somebody to take it.
    Pending,
    /// Somebody has it.
    Delivered,
}

/// A task that somebody outside the flow is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// Its run.
    pub run: u64,
    /// Its step.
    pub step: u32,
    /// The open attempt.
    pub attempt: u32,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The agent.
    pub agent: String,
    /// The operator's name.
    pub operator: String,
    /// The operator's kind.
    pub kind: String,
    /// The queue, for pull workers.
    pub queue: Option<String>,
    /// How far it is.
    pub phase: TaskPhase,
    /// When the step was scheduled, in Unix milliseconds.
    pub scheduled_ms: u64,
    /// When the attempt was opened, in Unix milliseconds.
    pub opened_ms: u64,
    /// Who has it.
    pub worker: Option<String>,
    /// When the attempt times out, in milliseconds of the steady clock.
    pub deadline_ms: Option<u64>,
    /// When the lease ends without a heartbeat, in milliseconds of the steady clock.
    pub lease_ms: Option<u64>,
    /// How often in a row these two were put off, because nobody could have been heard.
    pub graces: u32,
    /// One line for a person.
    pub summary: Option<String>,
    /// What the worker fetches, rendered: the worker API's prompt, as JSON.
    pub prompt: String,
    /// What the attempt asked a senior, and what it was told: JSON.
    pub question: Option<String>,
}

/// Which open tasks to list.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only this operator.
    pub operator: Option<String>,
    /// Only this operator kind.
    pub kind: Option<String>,
    /// Only this run.
    pub run: Option<u64>,
    /// Only tasks after this one (the cursor of the page before).
    pub after: Option<(u64, u32)>,
    /// At most this many.
    pub limit: usize,
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
    /// Counts up at every write.
    pub revision: u64,
    /// When it was written, in Unix milliseconds.
    pub updated_ms: u64,
    /// When it expires, in Unix milliseconds.
    pub expires_ms: Option<u64>,
    /// What its write said about it.
    pub hints: StoreOptions,
}

impl StateRow {
    /// Whether it has not expired.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }
}

/// A blueprint version.
#[derive(Debug, Clone, PartialEq)]
pub struct BlueprintRow {
    /// The bundle's hash, in hex.
    pub hash: String,
    /// The name that the blueprint gives itself.
    pub name: String,
    /// The bundle, encoded.
    pub bundle: Vec<u8>,
    /// When it was first stored, in Unix milliseconds.
    pub created_ms: u64,
    /// What whoever published it could do then: a grant as JSON. Absent in a version that only came
    /// with a request to run it.
    pub publisher: Option<String>,
}

impl BlueprintRow {
    /// The bundle, if it is the one that was stored.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
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

/// Whether bytes are those that were stored under a hash (BLAKE3, hex).
///
/// # Errors
/// [`StoreError::Damaged`] if they are others.
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
#[derive(Debug, Clone, PartialEq)]
pub struct ArtifactRow {
    /// The run.
    pub run: u64,
    /// The file's number within the run.
    pub n: u32,
    /// The name that a person sees.
    pub name: String,
    /// The blob's hash, BLAKE3 in hex.
    pub hash: String,
    /// Bytes.
    pub size: u64,
    /// When it was made, in Unix milliseconds; with `run` and `n` it makes the artifact's id.
    pub created_ms: u64,
    /// The step that made it.
    pub step: u32,
    /// The attempt that made it.
    pub attempt: u32,
    /// Whether its attempt was accepted.
    pub published: bool,
}

/// A token that was given out.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRow {
    /// Its id.
    pub jti: String,
    /// The role.
    pub role: String,
    /// The claims, as JSON.
    pub claims: String,
    /// The token that it was made from.
    pub parent: Option<String>,
    /// When it was made, in Unix milliseconds.
    pub created_ms: u64,
    /// When it ends, in Unix milliseconds.
    pub expires_ms: u64,
    /// When it was revoked, in Unix milliseconds.
    pub revoked_ms: Option<u64>,
}

/// The answer given under an idempotency key.
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
    /// What to answer again: JSON.
    pub answer: String,
    /// When, in Unix milliseconds.
    pub created_ms: u64,
}

/// A signal on its way from one run to another.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// The sending run.
    pub run: u64,
    /// The sending step.
    pub step: u32,
    /// The receiving run.
    pub to: u64,
    /// What the receiver is to hear.
    pub errand: Errand,
}

/// What a run has for another.
#[derive(Debug, Clone, PartialEq)]
pub enum Errand {
    /// A signal.
    Signal {
        /// Its name.
        name: String,
        /// JSON.
        payload: String,
    },
    /// The sender called the receiver, and does not want it any more.
    Cancel {
        /// The sender's id.
        by: String,
        /// Why.
        reason: String,
    },
}

/// Something that was refused, kept.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceRow {
    /// The run.
    pub run: u64,
    /// The step.
    pub step: u32,
    /// The attempt.
    pub attempt: u32,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The code of the refusal.
    pub code: String,
    /// The body that was refused, cut to 64 KiB.
    pub body: String,
}

/// How much room a store takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that hold something.
    pub used: u64,
    /// Bytes of the file that hold nothing now and are written again before it grows.
    pub free: u64,
    /// Whether a deletion left something to be cleared by [`Write::Tidy`](super::Write::Tidy).
    pub debris: bool,
}

/// An ended run that nothing open needs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    /// The run's number.
    pub num: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: u64,
}

/// A connected operator.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Its id: `ses_…`.
    pub id: String,
    /// The operator's name.
    pub operator: String,
    /// Who opened it.
    pub principal: String,
    /// The token that it was opened with; revoking it ends the session.
    pub jti: String,
    /// When the opener's own token ends: no token of the session ends later. Unix milliseconds.
    pub until_ms: u64,
    /// When it was opened, in Unix milliseconds.
    pub created_ms: u64,
    /// When its last token ends, and it with that, in Unix milliseconds.
    pub expires_ms: u64,
    /// Whether its frames carry the prompts themselves.
    pub direct: bool,
    /// The number of its last frame.
    pub last_seq: u64,
    /// The number of the last frame that it acknowledged.
    pub acked_seq: u64,
    /// When it was closed, in Unix milliseconds.
    pub closed_ms: Option<u64>,
    /// Why it was closed.
    pub reason: Option<String>,
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number, from 1 and without gaps.
    pub seq: u64,
    /// When, as RFC 3339.
    pub at: String,
    /// What happened: JSON.
    pub line: String,
    /// What ties it to all lines before, in hex.
    pub hash: String,
}

/// Something that a session was told and has not acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameRow {
    /// The session.
    pub session: String,
    /// Its number within the session, from 1 and without gaps.
    pub seq: u64,
    /// What it says: `task/spawn`, `task/cancel`, `task/answer`.
    pub method: String,
    /// The run that it is about.
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
    /// The attempt's time from its delivery on, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The parameters, without what is made at delivery: a JSON object.
    pub params: String,
}
