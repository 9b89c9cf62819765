//! Reads of state: the stored values, hidden by transient ones.
//!
//! Each read has two forms: one that blocks, for callers on a thread of their own, and an async one
//! that runs on the blocking pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::DurableState;
use crate::{
    protocol::SearchOptions,
    store::{StateFilter, StateHit, StateKey, StateRow, StateSearch, StoreError, find},
};

/// The maximum number of keys that one traversal visits.
const VISITED: usize = 10_000;
/// The maximum number of links on one path.
const DEEP: u32 = 64;
/// The number of keys in one page of a listing.
const PAGE: usize = 1_000;

impl DurableState {
    /// Returns the value of a key, if there is one. Reads one row on the caller's thread, which
    /// takes some microseconds.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    pub fn value(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError> {
        if let Some(row) = self.transient_value(scope, key) {
            return Ok(Some(row));
        }
        if let Some((foreign, scope)) = self.foreign_to(scope) {
            return foreign.value(&scope, key);
        }
        let now_ms = self.clock.now_ms();
        Ok(self.store.state_value(scope, key)?.filter(|row| row.is_live(now_ms)))
    }

    /// Returns a page of the keys of a scope, sorted: at most `limit` after the key `after`. The
    /// values, which may be large, are not read. Blocks.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    pub fn blocking_page(
        &self,
        scope: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateKey>, StoreError> {
        if let Some((foreign, scope)) = self.foreign_to(scope) {
            return foreign.page(&scope, prefix, after, limit);
        }
        let filter = StateFilter {
            scope: scope.to_owned(),
            prefix: prefix.to_owned(),
            after: after.map(str::to_owned),
            limit,
            now_ms: self.clock.now_ms(),
        };
        let rows = self.store.state_page(&filter)?;
        let is_whole = rows.len() < limit;
        let last = rows.last().map(|row| row.key.clone());
        let mut rows: BTreeMap<String, StateKey> =
            rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        for row in self.transients(scope, prefix) {
            let on_page = is_whole || last.as_ref().is_some_and(|last| row.key <= *last);
            if on_page && after.is_none_or(|after| row.key.as_str() > after) {
                rows.insert(row.key.clone(), StateKey::of(&row));
            }
        }
        Ok(rows.into_values().take(limit).collect())
    }

    /// Like [`DurableState::blocking_page`], without blocking.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    pub async fn page(
        &self,
        scope: &str,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<StateKey>, StoreError> {
        let (scope, prefix) = (scope.to_owned(), prefix.to_owned());
        self.beside(move |state| state.blocking_page(&scope, &prefix, after.as_deref(), limit))
            .await
    }

    /// Returns the keys of a scope that start with `prefix`, sorted. Blocks.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    pub fn blocking_keys(&self, scope: &str, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut keys: Vec<String> = Vec::new();
        loop {
            let page = self.blocking_page(scope, prefix, keys.last().map(String::as_str), PAGE)?;
            let is_last = page.len() < PAGE;
            keys.extend(page.into_iter().map(|row| row.key));
            if is_last {
                return Ok(keys);
            }
        }
    }

    /// Like [`DurableState::blocking_keys`], without blocking.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    pub async fn keys(&self, scope: &str, prefix: &str) -> Result<Vec<String>, StoreError> {
        let (scope, prefix) = (scope.to_owned(), prefix.to_owned());
        self.beside(move |state| state.blocking_keys(&scope, &prefix)).await
    }

    /// Returns the values that contain every word of a query, the best first. A transient value is
    /// searched in place of the stored one that it hides. Blocks.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    pub fn blocking_find(
        &self,
        scope: &str,
        query: &str,
        prefix: &str,
        limit: usize,
        options: SearchOptions,
    ) -> Result<Vec<StateHit>, StoreError> {
        if let Some((foreign, scope)) = self.foreign_to(scope) {
            return foreign.find(&scope, query, prefix, limit, &options);
        }
        let over = self.transients(scope, prefix);
        let search = StateSearch {
            scope: scope.to_owned(),
            query: query.to_owned(),
            prefix: prefix.to_owned(),
            // Hidden values must not take the places of visible ones.
            limit: limit.saturating_add(over.len()),
            now_ms: self.clock.now_ms(),
            options,
        };
        let mut hits = self.store.search_state(&search)?;
        if !over.is_empty() {
            let hidden: BTreeSet<&str> = over.iter().map(|row| row.key.as_str()).collect();
            hits.retain(|hit| !hidden.contains(hit.key.as_str()));
            hits.extend(find::among(&search, over.iter().map(|row| &**row)));
            find::rank(&mut hits);
        }
        hits.truncate(limit);
        Ok(hits)
    }

    /// Like [`DurableState::blocking_find`], without blocking.
    ///
    /// # Errors
    /// Fails when they cannot be read.
    pub async fn find(
        &self,
        scope: &str,
        query: &str,
        prefix: &str,
        limit: usize,
        options: SearchOptions,
    ) -> Result<Vec<StateHit>, StoreError> {
        let (scope, query, prefix) = (scope.to_owned(), query.to_owned(), prefix.to_owned());
        self.beside(move |state| state.blocking_find(&scope, &query, &prefix, limit, options)).await
    }

    /// Returns the keys that are reachable from `from` over at most `max_depth` links, the nearest
    /// first and then by key. Visits at most 10,000 keys, and paths of at most 64 links. Blocks.
    ///
    /// # Errors
    /// Fails when the links cannot be read.
    pub fn blocking_walk(
        &self,
        scope: &str,
        from: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StoreError> {
        if let Some((foreign, scope)) = self.foreign_to(scope) {
            return foreign.walk(&scope, from, relation, max_depth);
        }
        let mut seen = BTreeSet::from([from.to_owned()]);
        let (mut reached, mut edge) = (Vec::new(), vec![from.to_owned()]);
        for _ in 0..max_depth.min(DEEP) {
            let mut next = BTreeSet::new();
            for key in &edge {
                let room = VISITED - seen.len().min(VISITED);
                for link in self.store.links_from(scope, key, relation, room)? {
                    if seen.insert(link.to_key.clone()) {
                        next.insert(link.to_key);
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            reached.extend(next.iter().cloned());
            edge = next.into_iter().collect();
        }
        reached.truncate(VISITED);
        Ok(reached)
    }

    /// Like [`DurableState::blocking_walk`], without blocking.
    ///
    /// # Errors
    /// Fails when the links cannot be read.
    pub async fn walk(
        &self,
        scope: &str,
        from: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StoreError> {
        let (scope, from) = (scope.to_owned(), from.to_owned());
        let relation = relation.map(str::to_owned);
        self.beside(move |state| state.blocking_walk(&scope, &from, relation.as_deref(), max_depth))
            .await
    }

    /// Returns a transient value, if there is one.
    pub fn transient_value(&self, scope: &str, key: &str) -> Option<StateRow> {
        let now_ms = self.clock.now_ms();
        let transient = self.transient.lock();
        if transient.is_empty() {
            return None;
        }
        transient.get(scope, key).filter(|row| row.is_live(now_ms)).cloned()
    }

    /// Returns the keys of the transient values of a scope, sorted.
    pub fn transient_keys(&self, scope: &str, prefix: &str) -> Vec<String> {
        self.transients(scope, prefix).iter().map(|row| row.key.clone()).collect()
    }

    /// Returns the transient values of a scope whose keys start with `prefix`, sorted by key.
    fn transients(&self, scope: &str, prefix: &str) -> Vec<Arc<StateRow>> {
        let now_ms = self.clock.now_ms();
        let transient = self.transient.lock();
        let rows = transient.of_prefix(scope, prefix);
        rows.filter(|row| row.is_live(now_ms)).map(Arc::clone).collect()
    }

    async fn beside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let state = self.clone();
        let read = self.tasks.spawn_blocking(move || read(&state));
        read.await.map_err(|_| StoreError::Closed)?
    }
}
