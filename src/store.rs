//! The traits of durable storage: writers that commit in groups, and readers.
//!
//! Owns the types of stored rows and the guarantee of a commit: a [`Batch`] is written as a whole
//! or not at all, and is synced to disk before it is acknowledged. Refuses a batch whose run has
//! moved on, and a data directory that another process owns or a newer release wrote. `sqlite/` is
//! the embedded adapter, `postgres/` the one for several machines, `memory/` the one for simulations.
//! Only this room uses SQL.

mod append;
mod change;
mod check;
mod cluster_key;
mod copy;
mod copy_tables;
mod durability;
mod durable_state;
mod erase;
mod errand;
mod exact;
mod expiring;
mod fair;
mod find;
mod foreign;
mod health;
mod load;
mod lock;
mod memory;
mod nodes;
mod numbers;
mod open;
mod padded;
mod page;
mod part;
mod postgres;
mod queue;
mod relay;
mod results;
mod rows;
mod run_filter;
mod shelf;
mod size;
mod sqlite;
mod stats;
mod submit;
mod task_rows;
mod threads;
mod upkeep;
mod used;
mod wakes;

#[cfg(test)]
mod conformance;
#[cfg(test)]
pub use sqlite::tamper;

pub use append::append;
pub use change::{
    Answers, Changed, Reducer, StateAct, StateBatch, StateChange, lay_over, number_text, reduce,
};
pub(crate) use change::{Planned, plan};
pub use check::{Checked, Tell};
pub use cluster_key::{ClusterKey, NotAClusterKey};
pub use copy::{CopiedTable, CopyProgress, CopyTo, StoreCopied, copy};
pub use durability::Durability;
pub use durable_state::{DurableState, StateLimits};
pub use erase::{
    Descent, ErasureTarget, MOST_ERASED_ROWS, MOST_ERASED_RUNS, Trace, TracedRun, Traces,
    TracesInCopy,
};
pub use errand::Errand;
pub use expiring::Expiring;
pub use find::{
    KeptRow, MOST_COUNTED, OpenTasksRow, QueuedRow, ScopeFilter, ScopeRow, StateFilter, StateHit,
    StateKey, StateSearch, VersionRow,
};
pub use foreign::{ForeignChange, ForeignStores};
pub use health::Health;
pub use load::{Loaded, LoadedRows, Want};
pub use memory::{Commit, Memory};
pub use nodes::{ClusterView, Finalized, LeaseTimes, NodeRow, NodeState, PeerAddress};
pub use numbers::Numbers;
pub use open::{Opened, open};
pub use page::{PageMark, read_in_pages};
pub use part::Partition;
pub use postgres::{
    ClusterStatus, Connections, DatabaseAddress, DatabaseFinding, FindingLevel, Joining, Member,
    Postgres, PostgresOptions, Retained, Seat, SeatOptions, Standbys, begin_after_restore,
    cluster_status, drain_node, fence_node, finalize as finalize_upgrade, hold as hold_upgrade,
    survey as survey_database,
};
pub use relay::{Carrier, Delivered, PROVISIONAL, Parcel, Relay, Renumbering};

pub use rows::{
    ArtifactRow, AuditRow, BlueprintRow, ChargeRow, ChargeSum, EvidenceRow, FrameRow, Header,
    IdempotencyRow, OutboxRow, Retired, RunStatus, SessionRow, Space, StateRow, TokenRow,
    fresh_nonce,
};

pub use run_filter::{RunFilter, RunPage};
pub use sqlite::{
    Options, Restored, Sqlite, Synchronous, TrialCopy, check_directory, clear_trials, copies_in,
    known_format, restore, survey,
};
pub use stats::{CostlyRun, CountedRun, DAY_MS, Grain, HOURS_KEPT_MS, StatsFilter, StatsRow};
pub use submit::commit;
pub use task_rows::{TaskFilter, TaskHold, TaskPhase, TaskRow};
pub use threads::MovingRuns;
pub use upkeep::{Migrated, Survey, Upkeep};
pub use used::Used;
pub(crate) use wakes::{wake, wake_once};

use std::{collections::HashSet, ops::Range, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    journal::{Entry, Fact},
    metrics::Commits,
    protocol::{MemoryLink, StoreOptions},
};

/// The prefix of the `meta` keys for runs that are to be deleted after they end, followed by the
/// run's number. Deleting the run removes the key.
pub const UNSTORED: &str = "unstored:";

/// The maximum number of entries in a page of a history.
pub const PAGE_ENTRIES: u32 = 256;
/// The maximum number of bytes in a page of a history, unless a single entry is larger.
pub const PAGE_BYTES: usize = 64 << 10;
/// The maximum number of pages of a history per lookup.
pub const PAGES: usize = 1_024;

/// The database interface of the engine.
pub trait Store: Writer + Reader {
    /// Returns the maintenance interface of the same store.
    fn upkeep(&self) -> &dyn Upkeep;
}

/// The write side: everything durable goes through it.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Queues a batch. Its `ack` is called once, on a writer's thread, after the batch is synced
    /// or refused; those of different runs may be called at the same time. Batches of one run commit in the order of their submission, and so do those that
    /// belong to no run. Across runs the order is fair, not that of submission. Never blocks, also
    /// while the queue is full: callers wait for [`Writer::room`] first.
    fn submit(&self, batch: Batch);

    /// Queues batches in their order, each as [`Writer::submit`] does. A writer that can wake its
    /// thread once for all of them does so.
    fn submit_all(&self, batches: Vec<Batch>) {
        batches.into_iter().for_each(|batch| self.submit(batch));
    }

    /// Waits until the queue is not full.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    async fn room(&self);

    /// Returns the numbers of the store.
    fn numbers(&self) -> &Numbers;

    /// Returns a new journal row number, larger than all before it.
    fn next_lsn(&self) -> u64 {
        self.next_lsns(1).start
    }

    /// Returns consecutive new journal row numbers, larger than all before them.
    fn next_lsns(&self, count: usize) -> Range<u64> {
        self.numbers().next_lsns(count)
    }

    /// Returns the largest journal row number that was ever allocated.
    fn last_lsn(&self) -> u64 {
        self.numbers().last_lsn()
    }

    /// Returns a number for a new run, larger than all before it.
    fn next_run(&self) -> u64 {
        self.numbers().next_run()
    }

    /// Returns the largest run number that was ever allocated.
    fn last_run(&self) -> u64 {
        self.numbers().last_run()
    }

    /// Returns the counters of the commits, if the store has any.
    fn commits(&self) -> Option<&Commits> {
        None
    }

    /// Returns the health of the store. A store that cannot fail is always well.
    fn health(&self) -> Health;

    /// Allocates the run number `run`, if neither it nor a larger one was ever allocated. Returns
    /// true on success.
    fn reserve_run(&self, run: u64) -> bool {
        self.numbers().reserve_run(run)
    }
}

/// The reads of a store. A reader sees every batch that was acknowledged before the call.
///
/// Every method may block on the disk. A shard's thread must not call any of them: a blocking thread
/// reads for it and sends the result as a message (see [`MovingRuns`]).
pub trait Reader: Send + Sync {
    /// Returns the header of a run.
    ///
    /// # Errors
    /// Fails when the database cannot be read. This holds for every method here.
    fn header(&self, run: u64) -> Result<Option<Header>, StoreError>;

    /// Returns everything that is needed to load a run, in one snapshot.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a history of more than `want.most` bytes; also when an entry
    /// cannot be decoded.
    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError>;

    /// Returns a page of runs, newest first: by the time of their creation, and for words by their
    /// number.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn runs(&self, filter: &RunFilter) -> Result<RunPage, StoreError>;

    /// Returns the runs of one page.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn headers(&self, filter: &RunFilter) -> Result<Vec<Header>, StoreError> {
        Ok(self.runs(filter)?.headers)
    }

    /// Runs of some partitions with a wake-up time up to `until_ms`, soonest first, at most `limit`:
    /// (run, wake_at_ms).
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn due(
        &self,
        parts: &[Partition],
        until_ms: u64,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError>;

    /// Returns the open runs without a nonce, with their epochs. Releases without nonces created
    /// them.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn runs_without_nonce(&self) -> Result<Vec<(u64, u32)>, StoreError>;

    /// Returns the entries of a run's current history with numbers over `after_seq`, oldest first.
    ///
    /// # Errors
    /// Also fails when an entry cannot be decoded.
    fn entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError>;

    /// Returns the entries of all histories of a run with numbers over `after_seq`, oldest first.
    ///
    /// # Errors
    /// Also fails when an entry cannot be decoded.
    fn all_entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError>;

    /// Returns the number of the first entry of a run's current history; 1 if the run does not
    /// exist.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn history_start(&self, run: u64) -> Result<u32, StoreError>;

    /// Returns the entries of all histories of a run with numbers over `after` and up to `upto`,
    /// oldest first. The cost depends on the number of these entries, not on the length of the
    /// history.
    ///
    /// # Errors
    /// Also fails when an entry cannot be decoded.
    fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, StoreError>;

    /// Returns the page marks of all entries of a run with numbers over `after_seq`, oldest first.
    /// If there are more than [`PAGES`], returns only the first [`PAGES`].
    ///
    /// # Errors
    /// Also fails when a row on the way is missing.
    fn pages(&self, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError>;

    /// Returns the entries of a page, oldest first; empty if the run was deleted.
    ///
    /// # Errors
    /// Also fails when an entry cannot be decoded.
    fn page(&self, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError>;

    /// Returns entries of all runs whose rows have numbers over `after` and up to `upto`, by number: at
    /// most `rows` of them, and no more after `bytes` bytes.
    ///
    /// # Errors
    /// Also fails when an entry cannot be decoded.
    fn feed(
        &self,
        after: u64,
        upto: u64,
        rows: usize,
        bytes: usize,
    ) -> Result<Vec<FeedRow>, StoreError>;

    /// Returns the charge of a run, if it is counted.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn charge(&self, run: u64) -> Result<Option<ChargeRow>, StoreError>;

    /// Returns the charges of the open runs, and the sums of all runs by token. The sums include
    /// the number of runs that were created at or after `since_ms`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn charges(&self, since_ms: u64) -> Result<(Vec<ChargeRow>, Vec<ChargeSum>), StoreError>;

    /// Returns the sums that a filter names. They include deleted runs.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn stats(&self, filter: &StatsFilter) -> Result<Vec<StatsRow>, StoreError>;

    /// Returns the runs that used most since the beginning of a day, the most expensive first, at most
    /// `limit`. Of each day the 20 most expensive are known.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn costly_runs(&self, since_ms: u64, limit: usize) -> Result<Vec<CostlyRun>, StoreError>;

    /// Returns the open runs that a run called.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn children(&self, run: u64) -> Result<Vec<Header>, StoreError>;

    /// Returns an open task.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn task(&self, run: u64, step: u32) -> Result<Option<TaskRow>, StoreError>;

    /// Returns open tasks, oldest first, at most `filter.limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError>;

    /// Returns the open tasks of queues, counted by queue and holder, sorted; at most `limit` groups.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn queued(&self, limit: usize) -> Result<Vec<QueuedRow>, StoreError>;

    /// Returns the open tasks outside of the process, counted by operator and kind, at most `limit`
    /// rows.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn open_tasks(&self, limit: usize) -> Result<Vec<OpenTasksRow>, StoreError>;

    /// Returns all values of a state scope, sorted by key, including expired ones.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state(&self, scope: &str) -> Result<Vec<StateRow>, StoreError>;

    /// Returns the total bytes of all keys and values of a state scope.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_bytes(&self, scope: &str) -> Result<u64, StoreError>;

    /// Returns the total bytes of the entries of a run's current history.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn history_bytes(&self, run: u64) -> Result<u64, StoreError>;

    /// Returns one value of state, even if it has expired.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError>;

    /// Returns a page of the keys of a state scope, sorted. Reads no values.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_page(&self, filter: &StateFilter) -> Result<Vec<StateKey>, StoreError>;

    /// Returns the scopes that have state, sorted. What has expired by now does not count.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn state_scopes(&self, filter: &ScopeFilter) -> Result<Vec<ScopeRow>, StoreError>;

    /// Returns the values of a state scope that contain every word of a query, the best first.
    /// Empty for a query without words.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn search_state(&self, search: &StateSearch) -> Result<Vec<StateHit>, StoreError>;

    /// Returns the links from a key of state, sorted by target, at most `limit`, of one relation or
    /// of any.
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

    /// Returns all links of a scope, sorted by source and target.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn links(&self, scope: &str) -> Result<Vec<MemoryLink>, StoreError>;

    /// Returns true if a value of state has expired and was not removed yet.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn has_expired_state(&self, now_ms: u64) -> Result<bool, StoreError>;

    /// Returns a blueprint version by its full hash.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint(&self, hash: &str) -> Result<Option<BlueprintRow>, StoreError>;

    /// Returns the hash that a name currently refers to.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_named(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// Returns the hash of the newest version of a name that has a publisher.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn last_published(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// Returns the first hash of a name's versions whose hash starts with `prefix`, and the number of
    /// these versions: of all, or of those that have a publisher. Reads no bundle.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_like(
        &self,
        name: &str,
        prefix: &str,
        published: bool,
    ) -> Result<Option<(String, u64)>, StoreError>;

    /// Returns the versions of a name without their bundles, newest first: those after `after`, the
    /// time and the hash of one.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_list(
        &self,
        name: &str,
        after: Option<(u64, &str)>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, StoreError>;

    /// Returns names with their current hash and the time it was set (Unix milliseconds), sorted by
    /// name.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blueprint_names(&self) -> Result<Vec<(String, String, u64)>, StoreError>;

    /// Returns the files of a run, in order.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn artifacts(&self, run: u64) -> Result<Vec<ArtifactRow>, StoreError>;

    /// Returns a blob by its hash (BLAKE3, hex).
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn blob(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns all tokens, newest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn tokens(&self) -> Result<Vec<TokenRow>, StoreError>;

    /// Returns one token.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn token(&self, jti: &str) -> Result<Option<TokenRow>, StoreError>;

    /// Returns the ids of all revoked tokens. Their records may be gone.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn revoked(&self) -> Result<HashSet<String>, StoreError>;

    /// Returns the response stored under an idempotency key.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn idempotent(
        &self,
        principal: &str,
        route: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError>;

    /// Returns the messages between runs, and the changes for stores of somebody else's, that have
    /// not been delivered yet, oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError>;

    /// Returns the changes on their way to stores of somebody else's, oldest first: of one scope, of
    /// one run, or of all; at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn foreign_changes(
        &self,
        scope: Option<&str>,
        run: Option<u64>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError>;

    /// Returns the refused reports of a run or of one step of it: the last ones, at most `limit`,
    /// oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn evidence(
        &self,
        run: u64,
        step: Option<u32>,
        limit: usize,
    ) -> Result<Vec<EvidenceRow>, StoreError>;

    /// Returns the open sessions, oldest first.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError>;

    /// Returns one session, open or closed.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError>;

    /// Returns the frames that sessions have not acknowledged, by session and in order.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn frames(&self) -> Result<Vec<FrameRow>, StoreError>;

    /// Returns the value that a middleware layer stored under a key, and its expiry.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn kept(&self, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, StoreError>;

    /// Returns the values that a middleware layer stored under keys after `after`, with their keys and
    /// expiries, sorted by key, at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn kept_by(&self, layer: &str, after: &str, limit: usize) -> Result<Vec<KeptRow>, StoreError>;

    /// Returns the lines of the audit log with numbers over `after`, in order, at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// Returns the last line of the audit log.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn last_audit(&self) -> Result<Option<AuditRow>, StoreError>;

    /// Returns one of the host's own values.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn meta(&self, key: &str) -> Result<Option<String>, StoreError>;

    /// Returns the host's own values under some keys, in the order of the keys.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn metas(&self, keys: &[String]) -> Result<Vec<Option<String>>, StoreError> {
        keys.iter().map(|key| self.meta(key)).collect()
    }

    /// Returns the runs that are to be deleted after they end (see [`UNSTORED`]); at most 1,000.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn unstored(&self) -> Result<Vec<u64>, StoreError>;

    /// Returns the number of ended runs. Scans the headers of all runs.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn ended_runs(&self) -> Result<u64, StoreError>;

    /// Returns ended runs with numbers over `after` that nothing open depends on (a caller, a
    /// called run, a signal in transit), oldest first, at most `limit`.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn retired(&self, after: u64, limit: usize) -> Result<Vec<Retired>, StoreError>;

    /// Returns the approximate bytes of a run: the entries of all its histories and its files.
    ///
    /// # Errors
    /// See [`Reader::header`].
    fn run_bytes(&self, run: u64) -> Result<u64, StoreError>;
}

/// A unit of commit.
pub struct Batch {
    /// The conditions. If one does not hold, nothing of the batch is written.
    pub checks: Vec<Check>,
    /// The entries and the header of a run.
    pub run: Option<RunWrite>,
    /// All other writes.
    pub writes: Vec<Write>,
    /// Receives the result.
    pub ack: Ack,
}

/// The callback for the result of a batch.
pub type Ack = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A condition, evaluated inside the transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// The token is not revoked. Otherwise fails with [`StoreError::Revoked`].
    TokenLive(String),
    /// The last journal row of a run is this one. Otherwise fails with [`StoreError::Moved`]. For
    /// writes that depend on the state of a run but add nothing to its journal.
    RunAt {
        /// The run.
        run: u64,
        /// The row.
        cursor: u64,
    },
    /// A value of the host is unchanged (or still absent). Otherwise fails with
    /// [`StoreError::Changed`].
    MetaIs {
        /// The key.
        key: String,
        /// The value that was read before.
        value: Option<String>,
    },
    /// The idempotency key is unused for (principal, route). Otherwise fails with
    /// [`StoreError::KeyUsed`].
    KeyFree {
        /// The token's subject.
        principal: String,
        /// The route.
        route: String,
        /// The key.
        key: String,
    },
}

/// The part of a batch that belongs to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunWrite {
    /// The header after the batch. Its `cursor` is the lsn of the last entry.
    pub header: Header,
    /// The cursor that the stored header must have; `None` for a new run. Otherwise fails with
    /// [`StoreError::Moved`].
    pub expected: Option<u64>,
    /// The new entries, oldest first.
    pub entries: Vec<JournalRow>,
    /// True if more than the cursor, the counters and the times changed in the header.
    pub whole: bool,
}

/// A row of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalRow {
    /// The row's number.
    pub lsn: u64,
    /// The number of the entry within the run.
    pub seq: u32,
    /// The previous row of the run, if there is one.
    pub before: Option<u64>,
    /// True if it starts a history.
    pub begins: bool,
    /// The encoded entry. Not serialized: [`Parcel`] carries it beside the rest.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// An entry among those of all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedRow {
    /// The row's number.
    pub lsn: u64,
    /// The run.
    pub run: u64,
    /// The entry.
    pub entry: Entry,
    /// The size of the encoded entry.
    pub bytes: usize,
}

impl JournalRow {
    /// Creates the row `lsn` of the run `run`. `before` is the last row of the run so far.
    pub fn new(run: u64, lsn: u64, before: Option<u64>, entry: &Entry) -> Self {
        let begins = matches!(entry.fact, Fact::RunStarted(_));
        Self { lsn, seq: entry.seq, before, begins, bytes: entry.encode(run) }
    }
}

/// A write outside the journal. Only the writes of a run can be serialized: those are what one node may
/// let another commit (see [`Parcel`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Write {
    /// Inserts or replaces an open task (key: run, step).
    PutTask(Box<TaskRow>),
    /// Changes who has an open task, and until when.
    HoldTask(Box<TaskHold>),
    /// Removes an ended task.
    CloseTask {
        /// The run.
        run: u64,
        /// The step.
        step: u32,
    },
    /// Removes all tasks of a run.
    CloseTasks {
        /// The run.
        run: u64,
    },
    /// Writes a value of state and increments its revision.
    PutState {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
        /// JSON.
        value: String,
        /// Hints about the value.
        #[serde(with = "exact::hints")]
        hints: StoreOptions,
        /// The expiry, in Unix milliseconds.
        expires_ms: Option<u64>,
        /// The time of the write, in Unix milliseconds.
        at_ms: u64,
    },
    /// Changes state, if the stored values allow it. Otherwise the batch is refused.
    ChangeState(Box<StateBatch>),
    /// Removes the stored answers to a step that changed state.
    ForgetReceipt {
        /// The run.
        run: u64,
        /// The step.
        step: u32,
    },
    /// Removes at most `rows` expired values of state.
    #[serde(skip)]
    ExpireState {
        /// The current time, in Unix milliseconds.
        now_ms: u64,
        /// The maximum number of values.
        rows: usize,
    },
    /// Removes a value of state.
    DeleteState {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
    },
    /// Stores bytes under their hash, if they are not stored yet.
    PutBlob {
        /// BLAKE3, hex.
        hash: String,
        /// The bytes. Not serialized: [`Parcel`] carries them beside the rest.
        #[serde(skip)]
        data: Arc<[u8]>,
    },
    /// Inserts a file of a run.
    PutArtifact(ArtifactRow),
    /// Publishes the staged files of an attempt, with its accepted result.
    PublishArtifacts {
        /// The run.
        run: u64,
        /// The step.
        step: u32,
        /// The attempt.
        attempt: u32,
    },
    /// Stores a blueprint version, if it is not stored yet. A given publisher replaces the stored
    /// one.
    #[serde(skip)]
    PutBlueprint(BlueprintRow),
    /// Makes a name refer to a version.
    #[serde(skip)]
    NameBlueprint {
        /// The name.
        name: String,
        /// The hash.
        hash: String,
        /// The time, in Unix milliseconds.
        at_ms: u64,
    },
    /// Let a name stand for nothing any more, if it stands for this version.
    #[serde(skip)]
    UnnameBlueprint {
        /// The name.
        name: String,
        /// The hash.
        hash: String,
    },
    /// Deletes the versions of a blueprint that no run has, and its name.
    #[serde(skip)]
    DeleteBlueprint {
        /// The name.
        name: String,
    },
    /// Stores the charge of a run.
    PutCharge(ChargeRow),
    /// Counts a run that ended.
    CountRun(#[serde(with = "exact::counted")] Box<CountedRun>),
    /// Stores a token.
    #[serde(skip)]
    PutToken(TokenRow),
    /// Revokes a token.
    #[serde(skip)]
    RevokeToken {
        /// The token's id.
        jti: String,
        /// The time, in Unix milliseconds.
        at_ms: u64,
    },
    /// Stores the response for an idempotency key.
    #[serde(skip)]
    PutIdempotency(IdempotencyRow),
    /// Queues a message to another run, or a change for a store of somebody else's.
    PutOutbox(OutboxRow),
    /// Removes a message that was delivered or can never be delivered.
    DeleteOutbox {
        /// The sending run.
        run: u64,
        /// The sending step.
        step: u32,
    },
    /// Stores a refused report, unless there are enough of its attempt.
    PutEvidence(EvidenceRow),
    /// Stores a value of the host.
    #[serde(skip)]
    PutMeta {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// Removes at most `rows` responses stored before `before_ms`, the oldest first.
    #[serde(skip)]
    ExpireIdempotency {
        /// Unix milliseconds.
        before_ms: u64,
        /// The maximum number of responses.
        rows: usize,
    },
    /// Removes the response for an idempotency key, if it was stored before `before_ms`: another
    /// request may have taken the key anew meanwhile.
    #[serde(skip)]
    ForgetAnswer {
        /// The principal.
        principal: String,
        /// The route.
        route: String,
        /// The key.
        key: String,
        /// Unix milliseconds.
        before_ms: u64,
    },
    /// Stores a session.
    #[serde(skip)]
    PutSession(Box<SessionRow>),
    /// Extends the lifetime of a session.
    #[serde(skip)]
    ExtendSession {
        /// The session's id.
        session: String,
        /// The new expiry, in Unix milliseconds.
        expires_ms: u64,
    },
    /// Closes a session and drops its unacknowledged frames.
    #[serde(skip)]
    CloseSession {
        /// The session's id.
        session: String,
        /// The time, in Unix milliseconds.
        at_ms: u64,
        /// The reason.
        reason: String,
    },
    /// Removes at most `rows` sessions closed before `before_ms`, the oldest first.
    #[serde(skip)]
    ForgetSessions {
        /// Unix milliseconds.
        before_ms: u64,
        /// The maximum number of sessions.
        rows: usize,
    },
    /// Stores a frame of an open session and updates the session's last number.
    #[serde(skip)]
    PutFrame(Box<FrameRow>),
    /// Removes the frames of a session up to an acknowledged number.
    #[serde(skip)]
    AckFrames {
        /// The session's id.
        session: String,
        /// The number.
        seq: u64,
    },
    /// Reserves a run number that a journal refers to before the run is stored.
    #[serde(skip)]
    ReserveRun {
        /// The number.
        num: u64,
    },
    /// Deletes an ended run with everything that belongs to it. A part of a long history and of many
    /// files may be left for [`Write::Tidy`].
    #[serde(skip)]
    DeleteRun {
        /// The run.
        run: u64,
    },
    /// Stores a value for a middleware layer.
    #[serde(skip)]
    PutKept {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
        /// JSON.
        value: String,
        /// The expiry, in Unix milliseconds.
        expires_ms: Option<u64>,
    },
    /// Removes a value of a layer.
    #[serde(skip)]
    RemoveKept {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
    },
    /// Removes at most `rows` values of layers that expired before `before_ms`, the oldest first.
    #[serde(skip)]
    ExpireKept {
        /// Unix milliseconds.
        before_ms: u64,
        /// The maximum number of values.
        rows: usize,
    },
    /// Appends a line to the audit log.
    #[serde(skip)]
    AddAudit(AuditRow),
    /// Clears at most `rows` rows that deletions left behind, and returns at most `pages` free
    /// pages to the file system.
    #[serde(skip)]
    Tidy {
        /// Rows of the journal, and files.
        rows: usize,
        /// Pages of the file.
        pages: u32,
    },
    /// Removes a row that an erasure found.
    #[serde(skip)]
    Erase(Box<Trace>),
    /// Writes the whole database anew after the commit, so that no byte of what was deleted is left
    /// in it or in its log. Everything else waits meanwhile.
    #[serde(skip)]
    Rewrite,
}

impl StoreError {
    /// Returns true if the request itself is refused, so that a retry would be refused again. False
    /// means that the store could not be written, at least for now.
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
            | Self::Busy
            | Self::Away { .. }
            | Self::Fenced
            | Self::Taken { .. }
            | Self::Unfit { .. }
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

/// The reason why a write or read failed.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StoreError {
    /// The run was written by another writer, or an earlier batch of it failed.
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
    /// The value was changed by another writer since it was read.
    #[error("{key:?} was changed by another writer")]
    Changed {
        /// The key.
        key: String,
    },
    /// The stored value has another revision than the expected one.
    #[error("change state {key:?}: it has revision {found}, not {expected}")]
    Revision {
        /// The key.
        key: String,
        /// The expected revision; 0 for no value.
        expected: u64,
        /// The stored revision; 0 for no value.
        found: u64,
    },
    /// A reducer does not accept the stored value.
    #[error("change state {key:?}: {reason}")]
    StateRefused {
        /// The key.
        key: String,
        /// The reason.
        reason: String,
    },
    /// The disk is full.
    #[error("write to the database: the disk is full")]
    Full,
    /// Another process has locked the database for too long.
    #[error("write to the database: another process keeps it locked")]
    Locked,
    /// All connections for reads are in use.
    #[error("read from the database: all of its connections are in use; try again")]
    Busy,
    /// The database cannot be reached, or did not answer in time.
    #[error("{context}: {reason}")]
    Away {
        /// The operation.
        context: String,
        /// The reason.
        reason: String,
    },
    /// Another host has taken the database over, because this one did not renew its lease in time.
    #[error(
        "write to the database: another host has taken it over; nothing more is written by this one"
    )]
    Fenced,
    /// A living host owns the database.
    #[error("open {database}: the host {node} has it; stop that one first")]
    Taken {
        /// The database, without secrets.
        database: String,
        /// The name of the other host.
        node: String,
    },
    /// The database is not one that this program can use.
    #[error("open {database}: {reason}")]
    Unfit {
        /// The database, without secrets.
        database: String,
        /// The reason, and a remedy.
        reason: String,
    },
    /// The files are no longer at their path, so other processes would find other files, or none.
    #[error(
        "write to {path}: {file} was deleted, moved or replaced while it was in use; give the \
         directory back its files before the next start"
    )]
    Gone {
        /// The data directory.
        path: String,
        /// The missing file.
        file: String,
    },
    /// The write-ahead log with the last commits is missing.
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
    #[error("lock {path}: another process has it (pid {pid})")]
    Owned {
        /// The data directory.
        path: String,
        /// The owner's process id, if it recorded one.
        pid: String,
    },
    /// A newer release wrote the data directory.
    #[error(
        "open {path}: its format is {found}, of a newer release; this program knows formats up to \
         {known}: {remedy}"
    )]
    Newer {
        /// The database's path.
        path: String,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
        /// What to do.
        remedy: String,
    },
    /// There is not enough disk space for a migration.
    #[error(
        "migrate {path} from format {format}: a copy of it is made first, which together with what is \
         written anew takes {} MiB, and {} MiB are free; nothing has been changed", needs.div_ceil(1 << 20), free >> 20
    )]
    NoRoom {
        /// The database's path.
        path: String,
        /// The current format.
        format: u32,
        /// The space needed, in bytes.
        needs: u64,
        /// The space available, in bytes.
        free: u64,
    },
    /// The target directory of a restore is not empty.
    #[error("restore into {path}: {found} is there; name an empty or a new directory")]
    Occupied {
        /// The directory.
        path: String,
        /// A file found in it.
        found: String,
    },
    /// A stored row cannot be read.
    #[error("read {what}: {reason}")]
    Damaged {
        /// The row.
        what: String,
        /// The reason.
        reason: String,
    },
    /// A history exceeds the size that may be read into memory.
    #[error(
        "read run {run}: its history has {bytes} bytes, and the host may hold {most} of one run"
    )]
    TooLarge {
        /// The run's number.
        run: u64,
        /// The size in bytes of its current history.
        bytes: u64,
        /// The maximum size.
        most: u64,
    },
    /// Any other error.
    #[error("{context}: {reason}")]
    Database {
        /// The operation.
        context: String,
        /// The message of the database.
        reason: String,
    },
    /// The store was closed.
    #[error("write to the database: it is closed")]
    Closed,
}
