//! The read side: only durable data is visible.

use std::collections::{BTreeMap, HashSet};

use parking_lot::MutexGuard;

use super::{Memory, batches::Inner, tables::Tables};
use crate::{
    journal::Entry,
    protocol::{MemoryLink, RunId},
    store::{
        ArtifactRow, AuditRow, BlueprintRow, ChargeRow, ChargeSum, CostlyRun, EvidenceRow, FeedRow,
        FrameRow, Header, IdempotencyRow, KeptRow, Loaded, LoadedRows, MOST_COUNTED, OpenTasksRow,
        OutboxRow, PageMark, Partition, QueuedRow, Reader, Retired, RunFilter, RunPage,
        ScopeFilter, ScopeRow, SessionRow, StateFilter, StateHit, StateKey, StateRow, StateSearch,
        StatsFilter, StatsRow, StoreError, TaskFilter, TaskPhase, TaskRow, TokenRow, UNSTORED,
        VersionRow, Want, find,
        page::Pages,
        rows::is_blob,
        run_filter::Pick,
        stats::{Grain, most_expensive},
        threads::may_wait,
    },
};

impl Memory {
    fn read<T>(&self, query: impl FnOnce(&Tables) -> T) -> Result<T, StoreError> {
        Ok(query(&self.read_lock().tables))
    }

    /// Counts entries that are returned to a reader, for tests.
    fn counted(&self, entries: Vec<Entry>) -> Vec<Entry> {
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            self.entries_read.fetch_add(entries.len(), Relaxed);
            self.most_read.fetch_max(entries.len(), Relaxed);
        }
        entries
    }

    /// The tables, for somebody who may wait for a read.
    fn read_lock(&self) -> MutexGuard<'_, Inner> {
        may_wait();
        self.inner.lock()
    }
}

impl Tables {
    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError> {
        let Some(header) = self.headers.get(&run).cloned() else { return Ok(None) };
        if !(want.rows)(&header) {
            return Ok(Some(Loaded { header, rows: None }));
        }
        let too_large = |bytes: u64| {
            let most = want.most;
            (bytes > most).then_some(StoreError::TooLarge { run, bytes, most })
        };
        let entries = self.entries(run, 0, false)?;
        let size = |entry: &Entry| entry.encode(run).len() as u64;
        if header.bytes > want.most
            && let Some(error) = too_large(entries.iter().map(size).sum())
        {
            return Err(error);
        }
        let scope = format!("run:{}", RunId::new(run, header.created_ms));
        let state = self.state.values().filter(|row| row.scope == scope);
        let state: Vec<StateRow> = state.cloned().collect();
        let bytes = state.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum();
        let rows = LoadedRows {
            entries,
            tasks: self.tasks.values().filter(|task| task.run == run).cloned().collect(),
            files: self.artifacts.values().filter(|file| file.run == run).cloned().collect(),
            charge: self.charges.get(&run).cloned(),
            state: too_large(bytes).map_or(Ok(state), Err),
        };
        Ok(Some(Loaded { header, rows: Some(rows) }))
    }
}

impl Reader for Memory {
    fn header(&self, run: u64) -> Result<Option<Header>, StoreError> {
        self.read(|tables| tables.headers.get(&run).cloned())
    }

    fn load(&self, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError> {
        self.read_lock().tables.load(run, want)
    }

    fn runs(&self, filter: &RunFilter) -> Result<RunPage, StoreError> {
        self.read(|tables| {
            let all = tables.headers.values().rev();
            let mut rows: Vec<&Header> = all.filter(|header| filter.is_after(header)).collect();
            if !filter.is_by_number() {
                rows.sort_by_key(|header| std::cmp::Reverse(header.id()));
            }
            let mut pick = Pick::new(filter);
            let _ = rows.into_iter().all(|header| pick.take(header));
            pick.done()
        })
    }

    fn due(
        &self,
        parts: &[Partition],
        until_ms: u64,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        self.read(|tables| {
            let headers = tables.headers.values();
            let of_parts = headers.filter(|header| parts.contains(&Partition::of(header.num)));
            let mut due: Vec<(u64, u64)> = of_parts
                .filter_map(|header| Some((header.num, header.wake_at_ms?)))
                .filter(|(_, at)| *at <= until_ms)
                .collect();
            due.sort_by_key(|(run, at)| (*at, *run));
            due.truncate(limit);
            due
        })
    }

    fn feed(
        &self,
        after: u64,
        upto: u64,
        rows: usize,
        bytes: usize,
    ) -> Result<Vec<FeedRow>, StoreError> {
        let inner = self.read_lock();
        let (mut feed, mut size) = (Vec::new(), 0);
        let found = inner.tables.journal.range(after.saturating_add(1)..);
        for (lsn, row) in found.take_while(|(lsn, _)| **lsn <= upto).take(rows) {
            let entry = Entry::decode(row.run, &row.bytes).map_err(|error| {
                let (what, reason) = (format!("row {lsn}"), error.to_string());
                StoreError::Damaged { what, reason }
            })?;
            size += row.bytes.len();
            feed.push(FeedRow { lsn: *lsn, run: row.run, entry, bytes: row.bytes.len() });
            if size >= bytes {
                break;
            }
        }
        Ok(feed)
    }

    fn stats(&self, filter: &StatsFilter) -> Result<Vec<StatsRow>, StoreError> {
        self.read(|tables| tables.stats.find(filter))
    }

    fn costly_runs(&self, since_ms: u64, limit: usize) -> Result<Vec<CostlyRun>, StoreError> {
        let since_ms = Grain::Day.begin(since_ms);
        self.read(|tables| {
            let days = tables.stats.costly.range((since_ms, 0)..).map(|(_, it)| it.clone());
            most_expensive(days, limit)
        })
    }

    fn runs_without_nonce(&self) -> Result<Vec<(u64, u32)>, StoreError> {
        self.read(|tables| {
            let old = |header: &&Header| header.nonce == 0 && !header.status.is_ended();
            let old = tables.headers.values().filter(old);
            old.map(|header| (header.num, header.epoch)).collect()
        })
    }

    fn entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        self.read_lock().tables.entries(run, after_seq, false).map(|entries| self.counted(entries))
    }

    fn charge(&self, run: u64) -> Result<Option<ChargeRow>, StoreError> {
        self.read(|tables| tables.charges.get(&run).cloned())
    }

    fn charges(&self, since_ms: u64) -> Result<(Vec<ChargeRow>, Vec<ChargeSum>), StoreError> {
        self.read(|tables| {
            let rows = || {
                let header = |row: &ChargeRow| tables.headers.get(&row.run);
                tables.charges.values().filter_map(move |row| Some((row, header(row)?)))
            };
            let open = rows().filter(|(_, header)| !header.status.is_ended());
            let open = open.map(|(row, _)| row.clone()).collect();
            let mut sums: BTreeMap<&str, ChargeSum> = BTreeMap::new();
            let fresh = |jti: &str| ChargeSum { jti: jti.to_owned(), ..ChargeSum::default() };
            for (row, header) in rows() {
                let sum = sums.entry(&row.jti).or_insert_with(|| fresh(&row.jti));
                sum.bytes += row.bytes;
                sum.tokens += row.tokens;
                sum.nano_usd += row.nano_usd;
                sum.starts += u64::from(header.created_ms >= since_ms);
            }
            for (jti, (tokens, nano_usd)) in &tables.charged {
                let sum = sums.entry(jti).or_insert_with(|| fresh(jti));
                sum.tokens += tokens;
                sum.nano_usd += nano_usd;
            }
            (open, sums.into_values().collect())
        })
    }

    fn pages(&self, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError> {
        let entries = self.all_entries(run, after_seq)?;
        let mut pages = Pages::default();
        for entry in entries.iter().rev() {
            pages.add(u64::from(entry.seq), entry.seq, entry.encode(run).len());
        }
        Ok(pages.finish())
    }

    fn page(&self, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.all_entries(run, page.after)?;
        entries.retain(|entry| entry.seq <= page.upto);
        Ok(self.counted(entries))
    }

    fn all_entries(&self, run: u64, after_seq: u32) -> Result<Vec<Entry>, StoreError> {
        self.read_lock().tables.entries(run, after_seq, true)
    }

    fn history_start(&self, run: u64) -> Result<u32, StoreError> {
        let entries = self.read_lock().tables.entries(run, 0, false)?;
        Ok(entries.first().map_or(1, |first| first.seq))
    }

    fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.all_entries(run, after)?;
        entries.truncate(upto.saturating_sub(after) as usize);
        Ok(self.counted(entries))
    }

    fn children(&self, run: u64) -> Result<Vec<Header>, StoreError> {
        self.read(|tables| {
            let headers = tables.headers.values();
            let open = headers.filter(|header| !header.status.is_ended());
            open.filter(|header| header.parent.is_some_and(|(of, _)| of == run)).cloned().collect()
        })
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        self.read(|tables| {
            let open = tables.sessions.values().filter(|row| row.closed_ms.is_none());
            let mut open: Vec<SessionRow> = open.cloned().collect();
            open.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
            open
        })
    }

    fn session(&self, id: &str) -> Result<Option<SessionRow>, StoreError> {
        self.read(|tables| tables.sessions.get(id).cloned())
    }

    fn frames(&self) -> Result<Vec<FrameRow>, StoreError> {
        self.read(|tables| tables.frames.values().cloned().collect())
    }

    fn task(&self, run: u64, step: u32) -> Result<Option<TaskRow>, StoreError> {
        self.read(|tables| tables.tasks.get(&(run, step)).cloned())
    }

    fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError> {
        let fits = |task: &&TaskRow| {
            filter.operator.as_ref().is_none_or(|name| *name == task.operator)
                && filter.kind.as_ref().is_none_or(|kind| *kind == task.kind)
                && filter.run.is_none_or(|run| run == task.run)
                && filter.after.is_none_or(|after| (task.run, task.step) > after)
        };
        self.read(|tables| tables.tasks.values().filter(fits).take(filter.limit).cloned().collect())
    }

    fn state(&self, scope: &str) -> Result<Vec<StateRow>, StoreError> {
        self.read(|tables| {
            tables.state.values().filter(|row| row.scope == scope).cloned().collect()
        })
    }

    fn state_bytes(&self, scope: &str) -> Result<u64, StoreError> {
        let rows = self.state(scope)?;
        Ok(rows.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum())
    }

    fn queued(&self, limit: usize) -> Result<Vec<QueuedRow>, StoreError> {
        self.read(|tables| {
            let mut groups: BTreeMap<(String, Option<String>), (u64, u64)> = BTreeMap::new();
            for task in tables.tasks.values() {
                let Some(queue) = &task.queue else { continue };
                let held = task.phase != TaskPhase::Pending;
                let worker = held.then(|| task.worker.clone().unwrap_or_default());
                let group = groups.entry((queue.clone(), worker)).or_insert((0, u64::MAX));
                *group = (group.0 + 1, group.1.min(task.scheduled_ms));
            }
            let row = |((queue, worker), (tasks, oldest_ms))| QueuedRow {
                queue,
                worker,
                tasks,
                oldest_ms,
            };
            groups.into_iter().take(limit).map(row).collect()
        })
    }

    fn open_tasks(&self, limit: usize) -> Result<Vec<OpenTasksRow>, StoreError> {
        self.read(|tables| {
            let mut groups: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
            for task in tables.tasks.values() {
                let key = (task.operator.clone(), task.kind.clone());
                let group = groups.entry(key).or_insert((0, u64::MAX));
                *group = (group.0 + 1, group.1.min(task.scheduled_ms));
            }
            let row = |((operator, kind), (tasks, oldest_ms))| OpenTasksRow {
                operator,
                kind,
                tasks,
                oldest_ms,
            };
            groups.into_iter().take(limit).map(row).collect()
        })
    }

    fn kept_by(&self, layer: &str, after: &str, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        self.read(|tables| {
            let of =
                tables.kept.iter().filter(|((own, key), _)| own == layer && key.as_str() > after);
            let row =
                |((_, key), (value, expires_ms)): (&(String, String), &(String, Option<u64>))| {
                    KeptRow { key: key.clone(), value: value.clone(), expires_ms: *expires_ms }
                };
            of.map(row).take(limit).collect()
        })
    }

    fn state_scopes(&self, filter: &ScopeFilter) -> Result<Vec<ScopeRow>, StoreError> {
        self.read(|tables| {
            let mut scopes: Vec<ScopeRow> = Vec::new();
            for row in tables.state.values().filter(|row| row.is_live(filter.now_ms)) {
                let past = filter.after.as_ref().is_none_or(|after| row.scope > *after);
                if !past || !row.scope.starts_with(&filter.prefix) {
                    continue;
                }
                if scopes.last().is_none_or(|last| last.scope != row.scope) {
                    if scopes.len() == filter.limit {
                        break;
                    }
                    let scope = row.scope.clone();
                    scopes.push(ScopeRow { scope, keys: 0, bytes: 0, more: false });
                }
                let last = scopes.last_mut().expect("one was pushed");
                last.more = last.keys == MOST_COUNTED;
                if !last.more {
                    last.keys += 1;
                    last.bytes += (row.key.len() + row.value.len()) as u64;
                }
            }
            scopes
        })
    }

    fn history_bytes(&self, run: u64) -> Result<u64, StoreError> {
        let entries = self.entries(run, 0)?;
        Ok(entries.iter().map(|entry| entry.encode(run).len() as u64).sum())
    }

    fn state_value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError> {
        self.read(|tables| tables.state.get(&(scope.to_owned(), key.to_owned())).cloned())
    }

    fn state_page(&self, filter: &StateFilter) -> Result<Vec<StateKey>, StoreError> {
        self.read(|tables| {
            let rows = tables.state.values().filter(|row| filter.fits(row)).take(filter.limit);
            rows.map(StateKey::of).collect()
        })
    }

    fn search_state(&self, search: &StateSearch) -> Result<Vec<StateHit>, StoreError> {
        self.read(|tables| {
            let of_scope = tables.state.values().filter(|row| row.scope == search.scope);
            let mut hits = find::among(search, of_scope);
            find::rank(&mut hits);
            hits.truncate(search.limit);
            hits
        })
    }

    fn links_from(
        &self,
        scope: &str,
        key: &str,
        relation: Option<&str>,
        limit: usize,
    ) -> Result<Vec<MemoryLink>, StoreError> {
        self.read(|tables| {
            let mut links: Vec<MemoryLink> = tables
                .links
                .iter()
                .filter(|((of, from, name, _), _)| {
                    of == scope && from == key && relation.is_none_or(|wanted| wanted == name)
                })
                .map(link)
                .collect();
            links.sort_by(|a, b| (&a.to_key, &a.relation).cmp(&(&b.to_key, &b.relation)));
            links.truncate(limit);
            links
        })
    }

    fn links(&self, scope: &str) -> Result<Vec<MemoryLink>, StoreError> {
        self.read(|tables| {
            let of_scope = tables.links.iter().filter(|((of, ..), _)| of == scope);
            let mut links: Vec<MemoryLink> = of_scope.map(link).collect();
            links.sort_by(|a, b| {
                let place =
                    |it: &MemoryLink| (it.from_key.clone(), it.to_key.clone(), it.relation.clone());
                place(a).cmp(&place(b))
            });
            links
        })
    }

    fn has_expired_state(&self, now_ms: u64) -> Result<bool, StoreError> {
        self.read(|tables| tables.state.values().any(|row| !row.is_live(now_ms)))
    }

    fn blueprint(&self, hash: &str) -> Result<Option<BlueprintRow>, StoreError> {
        self.read(|tables| tables.blueprints.iter().find(|row| row.hash == hash).cloned())
    }

    fn blueprint_named(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.read(|tables| tables.names.get(name).map(|(hash, _)| hash.clone()))
    }

    fn last_published(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.read(|tables| tables.last_published(name))
    }

    fn blueprint_like(
        &self,
        name: &str,
        prefix: &str,
        published: bool,
    ) -> Result<Option<(String, u64)>, StoreError> {
        self.read(|tables| tables.version_like(name, prefix, published))
    }

    fn blueprint_list(
        &self,
        name: &str,
        after: Option<(u64, &str)>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, StoreError> {
        self.read(|tables| tables.versions_of(name, after, limit))
    }

    fn blueprint_names(&self) -> Result<Vec<(String, String, u64)>, StoreError> {
        let shown =
            |(name, (hash, at)): (&String, &(String, u64))| (name.clone(), hash.clone(), *at);
        self.read(|tables| tables.names.iter().map(shown).collect())
    }

    fn artifacts(&self, run: u64) -> Result<Vec<ArtifactRow>, StoreError> {
        self.read(|tables| {
            tables.artifacts.values().filter(|row| row.run == run).cloned().collect()
        })
    }

    fn blob(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.read(|tables| tables.blobs.get(hash).map(|data| data.to_vec()))?;
        found.map(|data| is_blob(hash, &data).map(|()| data)).transpose()
    }

    fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.read(|tables| {
            let newest_first = tables.tokens.iter().rev();
            let mut rows: Vec<_> = newest_first.map(|token| tables.shown(token)).collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.created_ms));
            rows
        })
    }

    fn token(&self, jti: &str) -> Result<Option<TokenRow>, StoreError> {
        self.read(|tables| {
            let token = tables.tokens.iter().find(|token| token.jti == jti);
            token.map(|token| tables.shown(token))
        })
    }

    fn revoked(&self) -> Result<HashSet<String>, StoreError> {
        self.read(|tables| tables.revocations.keys().cloned().collect())
    }

    fn idempotent(
        &self,
        principal: &str,
        route: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        let key = (principal.to_owned(), route.to_owned(), key.to_owned());
        self.read(|tables| tables.idempotency.get(&key).cloned())
    }

    fn foreign_changes(
        &self,
        scope: Option<&str>,
        run: Option<u64>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        self.read(|tables| {
            let asked = |row: &&OutboxRow| {
                let of = row.errand.change_of().map(|(scope, _)| scope);
                of.is_some()
                    && (scope.is_none() || scope == of)
                    && run.is_none_or(|run| row.run == run)
            };
            tables.outbox.iter().filter(asked).take(limit).cloned().collect()
        })
    }

    fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError> {
        self.read(|tables| tables.outbox.clone())
    }

    fn evidence(
        &self,
        run: u64,
        step: Option<u32>,
        limit: usize,
    ) -> Result<Vec<EvidenceRow>, StoreError> {
        self.read(|tables| tables.evidence_of(run, step, limit))
    }

    fn kept(&self, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, StoreError> {
        self.read(|tables| tables.kept.get(&(layer.to_owned(), key.to_owned())).cloned())
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read(|tables| {
            tables.audit.iter().filter(|row| row.seq > after).take(limit).cloned().collect()
        })
    }

    fn last_audit(&self) -> Result<Option<AuditRow>, StoreError> {
        self.read(|tables| tables.audit.last().cloned())
    }

    fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.read(|tables| tables.meta.get(key).cloned())
    }

    fn unstored(&self) -> Result<Vec<u64>, StoreError> {
        self.read(|tables| {
            let keys = tables.meta.keys().filter_map(|key| key.strip_prefix(UNSTORED));
            keys.filter_map(|run| run.parse().ok()).take(1_000).collect()
        })
    }

    fn ended_runs(&self) -> Result<u64, StoreError> {
        self.read(|tables| {
            tables.headers.values().filter(|header| header.status.is_ended()).count() as u64
        })
    }

    fn retired(&self, after: u64, limit: usize) -> Result<Vec<Retired>, StoreError> {
        self.read(|tables| {
            let is_open =
                |run: u64| tables.headers.get(&run).is_some_and(|it| !it.status.is_ended());
            let needed = |run: u64, header: &Header| {
                header.parent.is_some_and(|(parent, _)| is_open(parent))
                    || tables.headers.values().any(|child| {
                        child.parent.is_some_and(|(of, _)| of == run) && !child.status.is_ended()
                    })
                    || tables.outbox.iter().any(|row| row.run == run)
            };
            let ended = tables.headers.range(after.saturating_add(1)..);
            let ended = ended.filter(|(num, it)| it.status.is_ended() && !needed(**num, it));
            let retired = ended.map(|(num, header)| Retired {
                num: *num,
                created_ms: header.created_ms,
                ended_ms: header.ended_ms.unwrap_or(header.updated_ms),
            });
            retired.take(limit).collect()
        })
    }

    fn run_bytes(&self, run: u64) -> Result<u64, StoreError> {
        self.read(|tables| {
            let rows = tables.journal.values().filter(|row| row.run == run);
            let files = tables.artifacts.values().filter(|row| row.run == run);
            rows.map(|row| row.bytes.len() as u64).chain(files.map(|file| file.size)).sum()
        })
    }
}

/// Converts a row to a link.
fn link(
    ((_, from, relation, to), metadata): (&(String, String, String, String), &Option<String>),
) -> MemoryLink {
    let mut link = MemoryLink::new(from, to, relation);
    link.metadata = metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
    link
}
