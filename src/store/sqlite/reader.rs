//! Dispatches each read to its table.

use std::collections::HashSet;

use rusqlite::Connection;

use super::{
    Sqlite, artifacts, blobs, blueprints, charges,
    error::database,
    evidence, frames, header, idempotency,
    journal::{self, Reach},
    kept, links, load, meta, outbox, retention, run_list, scopes, sessions, state, state_text,
    stats, tasks, tokens,
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

impl Sqlite {
    fn read<T>(
        &self,
        what: &str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        query(&*self.pool.lend()?).map_err(database(what))
    }
}

impl Reader for Sqlite {
    fn header(&self, run: u64) -> Result<Option<Header>, StoreError> {
        self.read("read a run", |conn| header::one(conn, run))
    }

    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError> {
        load::load(&*self.pool.lend()?, run, want)
    }

    fn runs(&self, filter: &RunFilter) -> Result<RunPage, StoreError> {
        self.read("list runs", |conn| run_list::page(conn, filter))
    }

    fn due(
        &self,
        parts: &[Partition],
        until_ms: u64,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        self.read("list due runs", |conn| header::due(conn, parts, until_ms, limit))
    }

    fn runs_without_nonce(&self) -> Result<Vec<(u64, u32)>, StoreError> {
        self.read("list runs without a nonce", header::without_nonce)
    }

    fn entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        journal::entries(&*self.pool.lend()?, run, after_seq, Reach::Current)
    }

    fn charge(&self, run: u64) -> Result<Option<ChargeRow>, StoreError> {
        self.read("read what a run is charged", |conn| charges::one(conn, run))
    }

    fn charges(&self, since_ms: u64) -> Result<(Vec<ChargeRow>, Vec<ChargeSum>), StoreError> {
        self.read("read what tokens are charged", |conn| {
            Ok((charges::open(conn)?, charges::sums(conn, since_ms)?))
        })
    }

    fn stats(&self, filter: &StatsFilter) -> Result<Vec<StatsRow>, StoreError> {
        self.read("read statistics", |conn| stats::list(conn, filter))
    }

    fn costly_runs(&self, since_ms: u64, limit: usize) -> Result<Vec<CostlyRun>, StoreError> {
        self.read("list the most expensive runs", |conn| stats::costly(conn, since_ms, limit))
    }

    fn feed(
        &self,
        after: u64,
        upto: u64,
        rows: usize,
        bytes: usize,
    ) -> Result<Vec<FeedRow>, StoreError> {
        journal::feed(&*self.pool.lend()?, (after, upto), rows, bytes)
    }

    fn pages(&self, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError> {
        journal::pages(&*self.pool.lend()?, run, after_seq)
    }

    fn page(&self, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError> {
        journal::page(&*self.pool.lend()?, run, page)
    }

    fn all_entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        journal::entries(&*self.pool.lend()?, run, after_seq, Reach::All)
    }

    fn history_start(&self, run: u64) -> Result<u32, StoreError> {
        self.read("find the beginning of a history", |conn| journal::start(conn, run))
    }

    fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, StoreError> {
        journal::window(&*self.pool.lend()?, run, after, upto)
    }

    fn children(&self, run: u64) -> Result<Vec<Header>, StoreError> {
        self.read("list the children of a run", |conn| header::children(conn, run))
    }

    fn task(&self, run: u64, step: u32) -> Result<Option<TaskRow>, StoreError> {
        self.read("read a task", |conn| tasks::one(conn, run, step))
    }

    fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError> {
        self.read("list tasks", |conn| tasks::list(conn, filter))
    }

    fn state(&self, scope: &str) -> Result<Vec<StateRow>, StoreError> {
        self.read("read state", |conn| state::list(conn, scope))
    }

    fn state_bytes(&self, scope: &str) -> Result<u64, StoreError> {
        self.read("sum up state", |conn| state::bytes(conn, scope))
    }

    fn queued(&self, limit: usize) -> Result<Vec<QueuedRow>, StoreError> {
        self.read("count queued tasks", |conn| tasks::queued(conn, limit))
    }

    fn open_tasks(&self, limit: usize) -> Result<Vec<OpenTasksRow>, StoreError> {
        self.read("count open tasks", |conn| tasks::open(conn, limit))
    }

    fn kept_by(&self, layer: &str, after: &str, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        self.read("list kept values", |conn| kept::of(conn, (layer, after), limit))
    }

    fn state_scopes(&self, filter: &ScopeFilter) -> Result<Vec<ScopeRow>, StoreError> {
        self.read("list the scopes of state", |conn| scopes::page(conn, filter))
    }

    fn history_bytes(&self, run: u64) -> Result<u64, StoreError> {
        self.read("sum up a history", |conn| journal::history_bytes(conn, run))
    }

    fn state_value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError> {
        self.read("read a value of state", |conn| state::one(conn, scope, key))
    }

    fn state_page(&self, filter: &StateFilter) -> Result<Vec<StateKey>, StoreError> {
        self.read("list state", |conn| state::page(conn, filter))
    }

    fn search_state(&self, search: &StateSearch) -> Result<Vec<StateHit>, StoreError> {
        self.read("search state", |conn| state_text::search(conn, search))
    }

    fn links_from(
        &self,
        scope: &str,
        key: &str,
        relation: Option<&str>,
        limit: usize,
    ) -> Result<Vec<MemoryLink>, StoreError> {
        self.read("follow links of state", |conn| links::from(conn, scope, key, relation, limit))
    }

    fn links(&self, scope: &str) -> Result<Vec<MemoryLink>, StoreError> {
        self.read("read links of state", |conn| links::of_scope(conn, scope))
    }

    fn has_expired_state(&self, now_ms: u64) -> Result<bool, StoreError> {
        self.read("look for expired state", |conn| state::has_expired(conn, now_ms))
    }

    fn blueprint(&self, hash: &str) -> Result<Option<BlueprintRow>, StoreError> {
        self.read("read a blueprint", |conn| blueprints::one(conn, hash))
    }

    fn blueprint_named(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.read("read a blueprint's name", |conn| blueprints::named(conn, name))
    }

    fn last_published(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.read("find a blueprint's last version", |conn| blueprints::last(conn, name))
    }

    fn blueprint_like(
        &self,
        name: &str,
        prefix: &str,
        published: bool,
    ) -> Result<Option<(String, u64)>, StoreError> {
        self.read("find a blueprint's version", |conn| {
            blueprints::like(conn, name, prefix, published)
        })
    }

    fn blueprint_list(
        &self,
        name: &str,
        after: Option<(u64, &str)>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, StoreError> {
        self.read("list a blueprint's versions", |conn| blueprints::list(conn, name, after, limit))
    }

    fn blueprint_names(&self) -> Result<Vec<(String, String, u64)>, StoreError> {
        self.read("list blueprints", blueprints::names)
    }

    fn artifacts(&self, run: u64) -> Result<Vec<ArtifactRow>, StoreError> {
        self.read("list the files of a run", |conn| artifacts::list(conn, run))
    }

    fn blob(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read("read a blob", |conn| blobs::one(conn, hash))
    }

    fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.read("list tokens", tokens::list)
    }

    fn token(&self, jti: &str) -> Result<Option<TokenRow>, StoreError> {
        self.read("read a token", |conn| tokens::one(conn, jti))
    }

    fn revoked(&self) -> Result<HashSet<String>, StoreError> {
        self.read("read the revoked tokens", tokens::revoked)
    }

    fn idempotent(
        &self,
        principal: &str,
        route: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        self.read("read an idempotency key", |conn| idempotency::one(conn, principal, route, key))
    }

    fn foreign_changes(
        &self,
        scope: Option<&str>,
        run: Option<u64>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        self.read("list changes on their way", |conn| outbox::changes(conn, scope, run, limit))
    }

    fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        self.read("list signals on their way", outbox::list)
    }

    fn evidence(
        &self,
        run: u64,
        step: Option<u32>,
        limit: usize,
    ) -> Result<Vec<EvidenceRow>, StoreError> {
        self.read("list the evidence of a run", |conn| evidence::list(conn, run, step, limit))
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        self.read("list sessions", sessions::open)
    }

    fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError> {
        self.read("read a session", |conn| sessions::one(conn, id))
    }

    fn frames(&self) -> Result<Vec<FrameRow>, StoreError> {
        self.read("list frames", frames::list)
    }

    fn kept(&self, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, StoreError> {
        self.read("read what a layer keeps", |conn| kept::one(conn, layer, key))
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read("read the audit log", |conn| kept::lines(conn, after, limit))
    }

    fn last_audit(&self) -> Result<Option<AuditRow>, StoreError> {
        self.read("read the end of the audit log", kept::last_line)
    }

    fn unstored(&self) -> Result<Vec<u64>, StoreError> {
        self.read("read which runs are to go", meta::unstored)
    }

    fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.read("read a value of the host", |conn| meta::one(conn, key))
    }

    fn metas(&self, keys: &[String]) -> Result<Vec<Option<String>>, StoreError> {
        self.read("read values of the host", |conn| {
            keys.iter().map(|key| meta::one(conn, key)).collect()
        })
    }

    fn ended_runs(&self) -> Result<u64, StoreError> {
        self.read("count ended runs", header::ended)
    }

    fn retired(&self, after: u64, limit: usize) -> Result<Vec<Retired>, StoreError> {
        self.read("list ended runs", |conn| header::retired(conn, after, limit))
    }

    fn run_bytes(&self, run: u64) -> Result<u64, StoreError> {
        self.read("measure a run", |conn| retention::run_bytes(conn, run))
    }
}
