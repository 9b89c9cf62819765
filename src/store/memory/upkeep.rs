//! The maintenance of a store in memory, which has no files.

use std::path::Path;

use async_trait::async_trait;

use super::Memory;
use crate::store::{
    Checked, ErasureTarget, Expiring, Health, Migrated, Reader as _, Space, Store, StoreError,
    Tell, TracedRun, Traces, TracesInCopy, Upkeep, rows::is_blob,
};

impl Store for Memory {
    fn upkeep(&self) -> &dyn Upkeep {
        self
    }
}

#[async_trait]
impl Upkeep for Memory {
    fn space(&self) -> Result<Space, StoreError> {
        let inner = self.inner.lock();
        let tables = &inner.tables;
        let rows = tables.journal.values().map(|row| row.bytes.len());
        let values = tables.state.values().map(|row| row.key.len() + row.value.len());
        let files = tables.blobs.values().map(|data| data.len());
        let used = rows.chain(values).chain(files).sum::<usize>() as u64;
        Ok(Space { used, free: 0, debris: false })
    }

    fn has_expired(&self, what: Expiring, before_ms: u64) -> Result<bool, StoreError> {
        Ok(self.inner.lock().tables.has_expired(what, before_ms))
    }

    fn expired_tokens(&self, before_ms: u64, most: usize) -> Result<Vec<String>, StoreError> {
        Ok(self.inner.lock().tables.expired_tokens(before_ms, most))
    }

    fn check(&self, tell: Tell<'_>) -> Result<(), StoreError> {
        let (runs, state, blobs) = {
            let inner = self.inner.lock();
            let tables = &inner.tables;
            let runs: Vec<u64> = tables.headers.keys().copied().collect();
            let blobs: Vec<_> =
                tables.blobs.iter().map(|(hash, data)| is_blob(hash, data)).collect();
            (runs, tables.state.len() as u64, blobs)
        };
        let (mut entries, mut damaged) = (0, 0);
        let mut found = Vec::new();
        for run in &runs {
            match self.all_entries(*run, 0) {
                Ok(all) => entries += all.len() as u64,
                Err(error) => found.push(error),
            }
        }
        let count = blobs.len() as u64;
        found.extend(blobs.into_iter().filter_map(Result::err));
        for error in found {
            let StoreError::Damaged { what, reason } = error else { return Err(error) };
            damaged += 1;
            let next = "it is kept nowhere else".to_owned();
            if !tell(Checked::Damaged { what, reason, next }) {
                return Ok(());
            }
        }
        let runs = runs.len() as u64;
        tell(Checked::Done { runs, entries, state, blobs: count, damaged });
        Ok(())
    }

    fn backup(&self, _to: &Path) -> Result<u64, StoreError> {
        Err(StoreError::Database {
            context: "back the store up".to_owned(),
            reason: "this store has no file".to_owned(),
        })
    }

    fn traces(&self, target: &ErasureTarget) -> Result<Traces, StoreError> {
        Ok(self.inner.lock().tables.traces(target))
    }

    fn copies(
        &self,
        _target: &ErasureTarget,
        _runs: &[TracedRun],
    ) -> Result<Vec<TracesInCopy>, StoreError> {
        Ok(Vec::new())
    }

    fn clock_ahead_ms(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    fn owner_died(&self) -> bool {
        false
    }

    fn migrated(&self) -> Option<Migrated> {
        None
    }

    async fn lost(&self) -> StoreError {
        match &self.relay {
            Some(relay) => Health::lost(relay.watch()).await,
            None => std::future::pending().await,
        }
    }

    fn close(&self) -> Result<(), StoreError> {
        if let Some(relay) = &self.relay {
            relay.close();
        }
        Ok(())
    }
}
