//! Dispatches each read to its table.

use std::collections::HashSet;

use super::{
    artifacts, blobs, blueprints, charges, header,
    journal::{self, Reach},
    kept, links, load,
    open::Postgres,
    outbox, run_list, scopes, sessions, state, state_text, stats, tasks, tokens,
};
use crate::{
    journal::Entry,
    protocol::MemoryLink,
    store::{
        ArtifactRow, AuditRow, BlueprintRow, ChargeRow, ChargeSum, CostlyRun, EvidenceRow, FeedRow,
        FrameRow, Header, IdempotencyRow, KeptRow, Loaded, OpenTasksRow, OutboxRow, PageMark,
        Partition, QueuedRow, Reader, Retired, RunFilter, RunPage, ScopeFilter, ScopeRow,
        SessionRow, StateFilter, StateHit, StateKey, StateRow, StateSearch, StatsFilter, StatsRow,
        StoreError, TaskFilter, TaskRow, TokenRow, VersionRow, Want,
    },
};

impl Reader for Postgres {
    fn header(&self, run: u64) -> Result<Option<Header>, StoreError> {
        self.pool.read("read a run", |db| header::one(db, run))
    }

    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError> {
        self.pool.snapshot("read a run", |db| load::load(db, run, want))
    }

    fn runs(&self, filter: &RunFilter) -> Result<RunPage, StoreError> {
        self.pool.read("list runs", |db| run_list::page(db, filter))
    }

    fn due(
        &self,
        parts: &[Partition],
        until_ms: u64,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        self.pool.read("list due runs", |db| header::due(db, parts, until_ms, limit))
    }

    fn runs_without_nonce(&self) -> Result<Vec<(u64, u32)>, StoreError> {
        self.pool.read("list runs without a nonce", header::without_nonce)
    }

    fn entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        self.pool.read("read the journal of a run", |db| {
            journal::entries(db, run, after_seq, Reach::Current)
        })
    }

    fn charge(&self, run: u64) -> Result<Option<ChargeRow>, StoreError> {
        self.pool.read("read what a run is charged", |db| charges::one(db, run))
    }

    fn charges(&self, since_ms: u64) -> Result<(Vec<ChargeRow>, Vec<ChargeSum>), StoreError> {
        // It adds up what every run is charged.
        self.at_length("read what tokens are charged", |db| {
            Ok((charges::open(db)?, charges::sums(db, since_ms)?))
        })
    }

    fn stats(&self, filter: &StatsFilter) -> Result<Vec<StatsRow>, StoreError> {
        self.pool.snapshot("read statistics", |db| stats::list(db, filter))
    }

    fn costly_runs(&self, since_ms: u64, limit: usize) -> Result<Vec<CostlyRun>, StoreError> {
        self.pool.snapshot("list the most expensive runs", |db| stats::costly(db, since_ms, limit))
    }

    fn feed(
        &self,
        after: u64,
        upto: u64,
        rows: usize,
        bytes: usize,
    ) -> Result<Vec<FeedRow>, StoreError> {
        self.pool
            .read("read the events of all runs", |db| journal::feed(db, (after, upto), rows, bytes))
    }

    fn pages(&self, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError> {
        self.pool.read("read the journal of a run", |db| journal::pages(db, run, after_seq))
    }

    fn page(&self, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError> {
        self.pool.read("read the journal of a run", |db| journal::page(db, run, page))
    }

    fn all_entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        self.pool.read("read the journal of a run", |db| {
            journal::entries(db, run, after_seq, Reach::All)
        })
    }

    fn history_start(&self, run: u64) -> Result<u32, StoreError> {
        self.pool.read("find the beginning of a history", |db| journal::start(db, run))
    }

    fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, StoreError> {
        self.pool.read("read the journal of a run", |db| journal::window(db, run, after, upto))
    }

    fn children(&self, run: u64) -> Result<Vec<Header>, StoreError> {
        self.pool.read("list the children of a run", |db| header::children(db, run))
    }

    fn task(&self, run: u64, step: u32) -> Result<Option<TaskRow>, StoreError> {
        self.pool.read("read a task", |db| tasks::one(db, run, step))
    }

    fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError> {
        self.pool.read("list tasks", |db| tasks::list(db, filter))
    }

    fn state(&self, scope: &str) -> Result<Vec<StateRow>, StoreError> {
        self.pool.read("read state", |db| state::list(db, scope))
    }

    fn state_bytes(&self, scope: &str) -> Result<u64, StoreError> {
        self.pool.read("sum up state", |db| state::bytes(db, scope))
    }

    fn queued(&self, limit: usize) -> Result<Vec<QueuedRow>, StoreError> {
        self.pool.read("count queued tasks", |db| tasks::queued(db, limit))
    }

    fn open_tasks(&self, limit: usize) -> Result<Vec<OpenTasksRow>, StoreError> {
        self.pool.read("count open tasks", |db| tasks::open(db, limit))
    }

    fn kept_by(&self, layer: &str, after: &str, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        self.pool.read("list kept values", |db| kept::of(db, (layer, after), limit))
    }

    fn state_scopes(&self, filter: &ScopeFilter) -> Result<Vec<ScopeRow>, StoreError> {
        self.pool.snapshot("list the scopes of state", |db| scopes::page(db, filter))
    }

    fn history_bytes(&self, run: u64) -> Result<u64, StoreError> {
        self.pool.read("sum up a history", |db| journal::history_bytes(db, run))
    }

    fn state_value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError> {
        self.pool.read("read a value of state", |db| state::one(db, scope, key))
    }

    fn state_page(&self, filter: &StateFilter) -> Result<Vec<StateKey>, StoreError> {
        self.pool.read("list state", |db| state::page(db, filter))
    }

    fn search_state(&self, search: &StateSearch) -> Result<Vec<StateHit>, StoreError> {
        self.pool.snapshot("search state", |db| state_text::search(db, search))
    }

    fn links_from(
        &self,
        scope: &str,
        key: &str,
        relation: Option<&str>,
        limit: usize,
    ) -> Result<Vec<MemoryLink>, StoreError> {
        self.pool.read("follow links of state", |db| links::from(db, scope, key, relation, limit))
    }

    fn links(&self, scope: &str) -> Result<Vec<MemoryLink>, StoreError> {
        self.pool.read("read links of state", |db| links::of_scope(db, scope))
    }

    fn has_expired_state(&self, now_ms: u64) -> Result<bool, StoreError> {
        self.pool.read("look for expired state", |db| state::has_expired(db, now_ms))
    }

    fn blueprint(&self, hash: &str) -> Result<Option<BlueprintRow>, StoreError> {
        self.pool.read("read a blueprint", |db| blueprints::one(db, hash))
    }

    fn blueprint_named(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.pool.read("read a blueprint's name", |db| blueprints::named(db, name))
    }

    fn last_published(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.pool.read("find a blueprint's last version", |db| blueprints::last(db, name))
    }

    fn blueprint_like(
        &self,
        name: &str,
        prefix: &str,
        published: bool,
    ) -> Result<Option<(String, u64)>, StoreError> {
        self.pool
            .read("find a blueprint's version", |db| blueprints::like(db, name, prefix, published))
    }

    fn blueprint_list(
        &self,
        name: &str,
        after: Option<(u64, &str)>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, StoreError> {
        self.pool.read("list a blueprint's versions", |db| blueprints::list(db, name, after, limit))
    }

    fn blueprint_names(&self) -> Result<Vec<(String, String, u64)>, StoreError> {
        self.pool.read("list blueprints", blueprints::names)
    }

    fn artifacts(&self, run: u64) -> Result<Vec<ArtifactRow>, StoreError> {
        self.pool.read("list the files of a run", |db| artifacts::list(db, run))
    }

    fn blob(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.pool.read("read a blob", |db| blobs::one(db, hash))
    }

    fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.pool.read("list tokens", tokens::list)
    }

    fn token(&self, jti: &str) -> Result<Option<TokenRow>, StoreError> {
        self.pool.read("read a token", |db| tokens::one(db, jti))
    }

    fn revoked(&self) -> Result<HashSet<String>, StoreError> {
        self.pool.read("read the revoked tokens", tokens::revoked)
    }

    fn idempotent(
        &self,
        principal: &str,
        route: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        self.pool.read("read an idempotency key", |db| kept::answer(db, principal, route, key))
    }

    fn foreign_changes(
        &self,
        scope: Option<&str>,
        run: Option<u64>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        self.pool.read("list changes on their way", |db| outbox::changes(db, scope, run, limit))
    }

    fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        self.pool.read("list signals on their way", outbox::list)
    }

    fn evidence(
        &self,
        run: u64,
        step: Option<u32>,
        limit: usize,
    ) -> Result<Vec<EvidenceRow>, StoreError> {
        self.pool.read("list the evidence of a run", |db| kept::evidence(db, run, step, limit))
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        self.pool.read("list sessions", sessions::open)
    }

    fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError> {
        self.pool.read("read a session", |db| sessions::one(db, id))
    }

    fn frames(&self) -> Result<Vec<FrameRow>, StoreError> {
        self.pool.read("list frames", sessions::frames)
    }

    fn kept(&self, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, StoreError> {
        self.pool.read("read what a layer keeps", |db| kept::one(db, layer, key))
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.pool.read("read the audit log", |db| kept::lines(db, after, limit))
    }

    fn last_audit(&self) -> Result<Option<AuditRow>, StoreError> {
        self.pool.read("read the end of the audit log", kept::last_line)
    }

    fn unstored(&self) -> Result<Vec<u64>, StoreError> {
        self.pool.read("read which runs are to go", kept::unstored)
    }

    fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.pool.read("read a value of the host", |db| kept::meta(db, key))
    }

    fn ended_runs(&self) -> Result<u64, StoreError> {
        self.at_length("count ended runs", header::ended)
    }

    fn retired(&self, after: u64, limit: usize) -> Result<Vec<Retired>, StoreError> {
        self.pool.read("list ended runs", |db| header::retired(db, after, limit))
    }

    fn run_bytes(&self, run: u64) -> Result<u64, StoreError> {
        self.pool.read("measure a run", |db| journal::run_bytes(db, run))
    }
}
