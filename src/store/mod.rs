//! What is durable, as traits: one writer that commits in groups, and readers.
//!
//! Owns the shapes of stored rows and the promise of a commit: all of a [`Batch`] or nothing,
//! synced to the disk before it is acknowledged. Refuses a batch whose run has moved on, and a
//! data directory that somebody else owns or a newer release wrote. `sqlite/` is the embedded
//! adapter, `memory/` the one for simulations; only this room knows SQL.

mod change;
mod check;
mod durable_state;
mod fair;
mod find;
mod health;
mod load;
mod memory;
mod part;
mod rows;
mod size;
mod sqlite;
mod threads;
mod upkeep;

#[cfg(test)]
mod conformance;

pub use change::{
    Answers, Changed, Reducer, StateAct, StateBatch, StateChange, lay_over, number_text, reduce,
};
pub(crate) use change::{Planned, plan};
pub use check::{Checked, Tell};
pub use durable_state::{DurableState, StateLimits};
pub use find::{StateFilter, StateHit, StateSearch};
pub use health::Health;
pub use load::{Loaded, LoadedRows, Want};
pub use memory::{Commit, Memory};
pub use part::Part;

pub use rows::{
    ArtifactRow, AuditRow, BlueprintRow, ChargeRow, ChargeSum, Errand, EvidenceRow, FrameRow,
    Header, IdempotencyRow, OutboxRow, PageMark, Retired, RunFilter, RunStatus, SessionRow, Space,
    StateRow, TaskFilter, TaskPhase, TaskRow, TokenRow, fresh_nonce,
};

pub use sqlite::{
    Opened, Options, Restored, Sqlite, Synchronous, check_directory, copy_of, known_format, open,
    restore, survey,
};
pub use threads::{MovingRuns, excepted};
pub use upkeep::{Migrated, Survey, Upkeep};

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    journal::{Entry, Fact},
    protocol::{MemoryLink, StoreOptions},
};

/// What the keys in `meta` begin with of runs that are to go once they have ended; the run's number
/// follows. Deleting the run removes it.
pub const UNSTORED: &str = "unstored:";

/// The most entries of a page of a history.
pub const PAGE_ENTRIES: u32 = 256;
/// The most bytes of a page of a history, as far as one entry is not larger.
pub const PAGE_BYTES: usize = 64 << 10;
/// The most pages of a history that are looked up at a time.
pub const PAGES: usize = 1_024;

/// Everything the engine needs of a database.
pub trait Store: Writer + Reader {
    /// The same store as a whole: its room, its copies.
    fn upkeep(&self) -> &dyn Upkeep;
}

/// The one road by which anything becomes durable.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Queues a batch. Its `ack` is called once, on the writer's thread, after the batch is synced
    /// or refused. Batches of one run commit in the order of their submission, and so do those that
    /// belong to no run; between runs the order is a fair one. Never waits: who may wait asks for
    /// [`Writer::room`] first, and who owns runs lets them rest until there is some.
    fn submit(&self, batch: Batch);

    /// Returns once less waits to be written than the queue is for.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    async fn room(&self);

    /// A number that no other row of the journal has, larger than all that were given before.
    fn next_lsn(&self) -> u64;

    /// A number for a new run, larger than all that were given before.
    fn next_run(&self) -> u64;

    /// The largest number of a run that was ever given.
    fn last_run(&self) -> u64;

    /// How the store is; one that cannot fail is always well.
    fn health(&self) -> Health;

    /// Takes the number `run` as [`Writer::next_run`] would, if neither it nor a larger one was ever
    /// given; says whether it did.
    fn reserve_run(&self, run: u64) -> bool;
}

/// What can be read. A reader sees every batch that was acknowledged before the call.
///
/// Every method may wait for the disk. A thread that moves runs on calls none of them: it has a
/// thread that may wait read for it, and goes on with what that sends back (see [`MovingRuns`]).
pub trait Reader: Send + Sync {
    /// A run's header.
    ///
    /// # Errors
    /// When the database cannot be read, as with every method here.
    fn header(&self, run: u64) -> Result<Option<Header>, StoreError>;

    /// Everything that a run is taken up from, as it was at one moment.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a history of more bytes than are wanted; also when an entry
    /// cannot be decoded.
    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError>;

    /// Runs, newest first, at most `filter.limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn headers(&self, filter: &RunFilter) -> Result<Vec<Header>, StoreError>;

    /// Runs of some partitions with a wake-up time up to `until_ms`, soonest first, at most `limit`:
    /// (run, wake_at_ms).
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn due(
        &self,
        parts: &[Part],
        until_ms: u64,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError>;

    /// The open runs that have no nonce, with their epochs: a release without nonces made them.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn runs_without_nonce(&self) -> Result<Vec<(u64, u32)>, StoreError>;

    /// The entries of a run's current history with a number over `after_seq`, oldest first.
    ///
    /// # Errors
    /// Also when an entry cannot be decoded.
    fn entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError>;

    /// The entries of all histories of a run with a number over `after_seq`, oldest first.
    ///
    /// # Errors
    /// Also when an entry cannot be decoded.
    fn all_entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError>;

    /// The number of the first entry of a run's current history; 1 where there is no such run.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn history_start(&self, run: u64) -> Result<u32, StoreError>;

    /// The entries of all histories of a run with a number over `after` and up to `upto`, oldest
    /// first. It costs what there is between the two, however long the history is.
    ///
    /// # Errors
    /// Also when an entry cannot be decoded.
    fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, StoreError>;

    /// Where the pages lie of the entries of all histories of a run with a number over `after_seq`,
    /// oldest first: the first [`PAGES`] of them, where there are more.
    ///
    /// # Errors
    /// Also when a row on the way there is missing.
    fn pages(&self, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError>;

    /// The entries of a page, oldest first; none once the run is deleted.
    ///
    /// # Errors
    /// Also when an entry cannot be decoded.
    fn page(&self, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError>;

    /// What a run is charged, if anything counts it.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn charge(&self, run: u64) -> Result<Option<ChargeRow>, StoreError>;

    /// What the open runs are charged, and the sums of all by token; with the runs of each that were
    /// created at or after `since_ms`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn charges(&self, since_ms: u64) -> Result<(Vec<ChargeRow>, Vec<ChargeSum>), StoreError>;

    /// The runs that a run called and that have not ended.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn children(&self, run: u64) -> Result<Vec<Header>, StoreError>;

    /// An open task.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn task(&self, run: u64, step: u32) -> Result<Option<TaskRow>, StoreError>;

    /// Open tasks, oldest first, at most `filter.limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError>;

    /// Every value of one state scope, sorted by key, also those that have expired.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state(&self, scope: &str) -> Result<Vec<StateRow>, StoreError>;

    /// The bytes of all keys and values of one state scope.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_bytes(&self, scope: &str) -> Result<u64, StoreError>;

    /// The bytes of the entries of a run's current history.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn history_bytes(&self, run: u64) -> Result<u64, StoreError>;

    /// One value of state, also one that has expired.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError>;

    /// A page of one state scope, sorted by key.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_page(&self, filter: &StateFilter) -> Result<Vec<StateRow>, StoreError>;

    /// The values of a state scope that have every word of a query, the best first; none for a
    /// query without a word.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn search_state(&self, search: &StateSearch) -> Result<Vec<StateHit>, StoreError>;

    /// The links that start from a key of state, sorted by where they lead, at most `limit`; of
    /// one relation or of any.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn links_from(
        &self,
        scope: &str,
        key: &str,
        relation: Option<&str>,
        limit: usize,
    ) -> Result<Vec<MemoryLink>, StoreError>;

    /// Every link of a scope, sorted by where it starts and where it leads.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn links(&self, scope: &str) -> Result<Vec<MemoryLink>, StoreError>;

    /// Whether a value of state has expired and was not removed yet.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn has_expired_state(&self, now_ms: u64) -> Result<bool, StoreError>;

    /// A blueprint version by its whole hash.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint(&self, hash: &str) -> Result<Option<BlueprintRow>, StoreError>;

    /// The hash that a name stands for now.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_named(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// Every version of a name whose hash begins with `prefix`, newest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_versions(&self, name: &str, prefix: &str)
    -> Result<Vec<BlueprintRow>, StoreError>;

    /// Names with their current hash and when it was set (Unix milliseconds), sorted.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_names(&self) -> Result<Vec<(String, String, u64)>, StoreError>;

    /// The files of a run, in order.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn artifacts(&self, run: u64) -> Result<Vec<ArtifactRow>, StoreError>;

    /// A blob by its hash (BLAKE3, hex).
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blob(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Tokens, newest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn tokens(&self) -> Result<Vec<TokenRow>, StoreError>;

    /// One token.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn token(&self, jti: &str) -> Result<Option<TokenRow>, StoreError>;

    /// The answer that was given under an idempotency key.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn idempotent(
        &self,
        principal: &str,
        route: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError>;

    /// What runs have for each other and has not arrived, oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError>;

    /// What was refused of a run, oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn evidence(&self, run: u64) -> Result<Vec<EvidenceRow>, StoreError>;

    /// The sessions that were not closed, oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError>;

    /// One session, closed or not.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError>;

    /// What sessions were told and have not acknowledged, by session and in order.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn frames(&self) -> Result<Vec<FrameRow>, StoreError>;

    /// What a layer of middleware keeps under a key, and when that expires.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn kept(&self, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, StoreError>;

    /// The lines of the audit log after a number, in order, at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// The last line of the audit log.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn last_audit(&self) -> Result<Option<AuditRow>, StoreError>;

    /// A value that the host keeps about itself.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn meta(&self, key: &str) -> Result<Option<String>, StoreError>;

    /// The runs that are to go once they have ended, whose start put [`UNSTORED`] and their number
    /// into `meta`; at most 1,000.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn unstored(&self) -> Result<Vec<u64>, StoreError>;

    /// How many ended runs there are; the headers of all runs are looked at.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn ended_runs(&self) -> Result<u64, StoreError>;

    /// Ended runs with a number over `after` that nothing open needs (a run that called them or
    /// that they called, a signal on its way), oldest first, at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn retired(&self, after: u64, limit: usize) -> Result<Vec<Retired>, StoreError>;

    /// About how many bytes a run takes: its entries of all histories and its files.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn run_bytes(&self, run: u64) -> Result<u64, StoreError>;
}

/// What commits together.
pub struct Batch {
    /// Conditions; if one does not hold, nothing of the batch is written.
    pub checks: Vec<Check>,
    /// The entries and the header of a run.
    pub run: Option<RunWrite>,
    /// Everything else.
    pub writes: Vec<Write>,
    /// Called with the result.
    pub ack: Ack,
}

/// What a batch's submitter hears.
pub type Ack = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A condition, looked at inside the transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Check {
    /// The token was not revoked; else [`StoreError::Revoked`].
    TokenLive(String),
    /// The last row of a run's journal is this one; else [`StoreError::Moved`]. For writes of a run
    /// that add nothing to its journal, and must not outlive what they rest on.
    RunAt {
        /// The run.
        run: u64,
        /// The row.
        cursor: u64,
    },
    /// The host's value under a key is still this one, or still none; else [`StoreError::Changed`].
    MetaIs {
        /// The key.
        key: String,
        /// The value that was read.
        value: Option<String>,
    },
    /// The key is unused for (principal, route); else [`StoreError::KeyUsed`].
    KeyFree {
        /// The token's subject.
        principal: String,
        /// The route.
        route: String,
        /// The key.
        key: String,
    },
}

/// A run's part of a batch.
#[derive(Debug, Clone)]
pub struct RunWrite {
    /// The header after the batch; its `cursor` is the last entry's lsn.
    pub header: Header,
    /// The cursor that the stored header must have now; `None` for a new run. Else
    /// [`StoreError::Moved`].
    pub expected: Option<u64>,
    /// The new entries, oldest first.
    pub entries: Vec<JournalRow>,
    /// Whether more than cursor, counters and times changed in the header.
    pub whole: bool,
}

/// A row of the journal.
#[derive(Debug, Clone)]
pub struct JournalRow {
    /// Its number.
    pub lsn: u64,
    /// The number of its entry within the run.
    pub seq: u32,
    /// The row of its run before it, if there is one.
    pub before: Option<u64>,
    /// Whether it begins a history.
    pub begins: bool,
    /// The encoded entry.
    pub bytes: Vec<u8>,
}

impl JournalRow {
    /// The row `lsn` of the run `run`, whose last row so far is `before`.
    pub fn new(run: u64, lsn: u64, before: Option<u64>, entry: &Entry) -> Self {
        let begins = matches!(entry.fact, Fact::RunStarted(_));
        Self { lsn, seq: entry.seq, before, begins, bytes: entry.encode(run) }
    }
}

/// A write outside the journal.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Insert or replace an open task (key: run, step).
    PutTask(Box<TaskRow>),
    /// A task ended.
    CloseTask {
        /// Its run.
        run: u64,
        /// Its step.
        step: u32,
    },
    /// Every task of a run ended.
    CloseTasks {
        /// The run.
        run: u64,
    },
    /// Write a value of state; the revision counts up by itself.
    PutState {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
        /// JSON.
        value: String,
        /// What is said about it.
        hints: StoreOptions,
        /// When it expires, in Unix milliseconds.
        expires_ms: Option<u64>,
        /// When, in Unix milliseconds.
        at_ms: u64,
    },
    /// Change state as far as what is there allows; else the batch is refused.
    ChangeState(Box<StateBatch>),
    /// Forget what was answered to a step that changed state.
    ForgetReceipt {
        /// The run.
        run: u64,
        /// The step.
        step: u32,
    },
    /// Remove at most `rows` values of state that have expired.
    ExpireState {
        /// Unix milliseconds.
        now_ms: u64,
        /// How many at most.
        rows: usize,
    },
    /// Remove a value of state.
    DeleteState {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
    },
    /// Store bytes under their hash, if they are not there.
    PutBlob {
        /// BLAKE3, hex.
        hash: String,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// Record a file of a run.
    PutArtifact(ArtifactRow),
    /// The staged files of an attempt are published with its accepted result.
    PublishArtifacts {
        /// The run.
        run: u64,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
    },
    /// Store a blueprint version, if it is not there; a publisher replaces the one before.
    PutBlueprint(BlueprintRow),
    /// Let a name stand for a version.
    NameBlueprint {
        /// The name.
        name: String,
        /// The hash.
        hash: String,
        /// When, in Unix milliseconds.
        at_ms: u64,
    },
    /// Record what a run is charged.
    PutCharge(ChargeRow),
    /// Record a token.
    PutToken(TokenRow),
    /// Revoke a token.
    RevokeToken {
        /// Its id.
        jti: String,
        /// When, in Unix milliseconds.
        at_ms: u64,
    },
    /// Keep the answer given under an idempotency key.
    PutIdempotency(IdempotencyRow),
    /// Something is on its way to another run.
    PutOutbox(OutboxRow),
    /// It arrived, or can never arrive.
    DeleteOutbox {
        /// The sending run.
        run: u64,
        /// The sending step.
        step: u32,
    },
    /// Keep what was refused.
    PutEvidence(EvidenceRow),
    /// Keep a value about the host itself.
    PutMeta {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// Forget answers given before `before_ms`.
    ExpireIdempotency {
        /// Unix milliseconds.
        before_ms: u64,
    },
    /// Record a session.
    PutSession(Box<SessionRow>),
    /// Let a session live longer.
    ExtendSession {
        /// Its id.
        session: String,
        /// Until when, in Unix milliseconds.
        expires_ms: u64,
    },
    /// End a session and drop what it was still to be told.
    CloseSession {
        /// Its id.
        session: String,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Why.
        reason: String,
    },
    /// Forget sessions that were closed before `before_ms`.
    ForgetSessions {
        /// Unix milliseconds.
        before_ms: u64,
    },
    /// Keep a frame of an open session, whose last number it then is.
    PutFrame(Box<FrameRow>),
    /// A session acknowledged its frames up to a number.
    AckFrames {
        /// The session's id.
        session: String,
        /// The number.
        seq: u64,
    },
    /// Give a run's number to nobody else: a journal names it, though the run is not stored yet.
    ReserveRun {
        /// The number.
        num: u64,
    },
    /// Delete an ended run with everything that belongs to it. Of a long history a part may be left
    /// for [`Write::Tidy`].
    DeleteRun {
        /// The run.
        run: u64,
    },
    /// Keep a value for a layer of middleware.
    PutKept {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
        /// JSON.
        value: String,
        /// When it may be forgotten, in Unix milliseconds.
        expires_ms: Option<u64>,
    },
    /// Forget a value of a layer.
    RemoveKept {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
    },
    /// Forget what layers kept until a time before `before_ms`.
    ExpireKept {
        /// Unix milliseconds.
        before_ms: u64,
    },
    /// Add a line to the audit log.
    AddAudit(AuditRow),
    /// Clear at most `rows` rows of what deletions left, and give at most `pages` free pages back to
    /// the file system.
    Tidy {
        /// Rows of the journal.
        rows: usize,
        /// Pages of the file.
        pages: u32,
    },
}

impl StoreError {
    /// Whether what was asked for is refused for what it is, so that it would be refused again. Any
    /// other error says that the store could not be written, or not now.
    pub fn is_about_the_change(&self) -> bool {
        match self {
            Self::Moved { .. }
            | Self::Revoked { .. }
            | Self::KeyUsed { .. }
            | Self::Changed { .. }
            | Self::Revision { .. }
            | Self::StateRefused { .. }
            | Self::TooLarge { .. }
            | Self::Damaged { .. } => true,
            Self::Full
            | Self::Locked
            | Self::Gone { .. }
            | Self::LogMissing { .. }
            | Self::Owned { .. }
            | Self::Newer { .. }
            | Self::NoRoom { .. }
            | Self::Occupied { .. }
            | Self::Database { .. }
            | Self::Closed => false,
        }
    }
}

/// Why something was not stored or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The run has moved on: somebody else wrote it, or an earlier batch of it failed.
    #[error("run {run} was changed by another writer")]
    Moved {
        /// The run's number.
        run: u64,
    },
    /// The token was revoked before this commit.
    #[error("token {jti} was revoked")]
    Revoked {
        /// The token's id.
        jti: String,
    },
    /// The idempotency key was used before.
    #[error("idempotency key {key:?} was already used")]
    KeyUsed {
        /// The key.
        key: String,
    },
    /// Somebody else has changed a value of the host since it was read.
    #[error("{key:?} was changed by another writer")]
    Changed {
        /// The key.
        key: String,
    },
    /// A value of state has another revision than the one that was expected.
    #[error("change state {key:?}: it has revision {found}, not {expected}")]
    Revision {
        /// The key.
        key: String,
        /// The revision that was asked for; 0 is none.
        expected: u64,
        /// The revision that it has; 0 is none.
        found: u64,
    },
    /// A reducer does not take what is there.
    #[error("change state {key:?}: {reason}")]
    StateRefused {
        /// The key.
        key: String,
        /// Why not.
        reason: String,
    },
    /// The disk is full.
    #[error("write to the database: the disk is full")]
    Full,
    /// Another process has locked the database for too long.
    #[error("write to the database: another process keeps it locked")]
    Locked,
    /// The files are no longer where they were opened; whoever looks for them finds others, or none.
    #[error(
        "write to {path}: {file} was deleted, moved or replaced while it was in use; give the \
         directory back its files before the next start"
    )]
    Gone {
        /// The data directory.
        path: String,
        /// The file that is not found any more.
        file: String,
    },
    /// The log that held the last commits is not there.
    #[error(
        "open {path}: its log ({path}-wal) is missing, though its last owner did not close it: what \
         was committed last is lost; put the file back, or accept the loss with \
         `moonswarm serve --accept-loss`"
    )]
    LogMissing {
        /// The database's path.
        path: String,
    },
    /// Another process owns the data directory.
    #[error("{path} is in use by another process (pid {pid})")]
    Owned {
        /// The data directory.
        path: String,
        /// Its owner, if it said so.
        pid: String,
    },
    /// A newer release wrote the data directory.
    #[error(
        "open {path}: its format is {found}, of a newer release; this program knows formats up to \
         {known}: use the release that wrote it"
    )]
    Newer {
        /// The database's path.
        path: String,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// There is no room for what a migration writes.
    #[error(
        "migrate {path} from format {format}: a copy of it is made first, which together with what is \
         written anew takes {} MiB, and {} MiB are free; nothing has been changed", needs.div_ceil(1 << 20), free >> 20
    )]
    NoRoom {
        /// The database's path.
        path: String,
        /// The format that it has.
        format: u32,
        /// The room that is needed, in bytes.
        needs: u64,
        /// The room that there is, in bytes.
        free: u64,
    },
    /// Something is where a store is to be restored.
    #[error("restore into {path}: {found} is there; name an empty or a new directory")]
    Occupied {
        /// The directory.
        path: String,
        /// What was found in it.
        found: String,
    },
    /// A stored row cannot be read.
    #[error("read {what}: {reason}")]
    Damaged {
        /// Which row.
        what: String,
        /// Why.
        reason: String,
    },
    /// A history is larger than what may be read into memory.
    #[error(
        "read run {run}: its history has {bytes} bytes, and the host may hold {most} of one run"
    )]
    TooLarge {
        /// The run's number.
        run: u64,
        /// The bytes of its current history.
        bytes: u64,
        /// The most that is read.
        most: u64,
    },
    /// Anything else.
    #[error("{context}: {reason}")]
    Database {
        /// What was tried.
        context: String,
        /// What the database said.
        reason: String,
    },
    /// The store was closed.
    #[error("write to the database: it is closed")]
    Closed,
}
