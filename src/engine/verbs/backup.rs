//! Backups and checks of the whole store, while it is in use.

use std::{fs::File, path::Path, sync::Arc};

use tokio::sync::mpsc;

use crate::engine::{Caller, EngineError, verbs::engine::UpkeepVerbs};
use crate::{
    store::{Checked, Store, StoreError},
    token::Verb,
};

/// The number of lines of a check that are buffered for a slow reader.
const AHEAD: usize = 64;

impl UpkeepVerbs<'_> {
    /// Copies a snapshot of the whole database into a file; returns the file, positioned at its
    /// beginning, and its size in bytes. The file has no name any more and disappears when it is
    /// closed.
    ///
    /// The copy has everything that was acknowledged before the call. Copies are made one at a
    /// time.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no space for the copy.
    pub async fn backup(self, caller: &Caller) -> Result<(File, u64), EngineError> {
        caller.grant.check(Verb::HostBackup, &[])?;
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let dir = self.engine.shared().settings.work.clone();
        self.engine.read(move |store| copy(store, &dir)).await
    }

    /// Reads everything in the store once and reports damage; the last line is [`Checked::Done`].
    /// Ends early if the receiver is dropped. Checks run one at a time.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn check_store(
        self,
        caller: &Caller,
    ) -> Result<mpsc::Receiver<Result<Checked, EngineError>>, EngineError> {
        caller.grant.check(Verb::HostBackup, &[])?;
        let inner = Arc::clone(&self.engine.inner);
        let (to, lines) = mpsc::channel(AHEAD);
        self.engine.shared().tasks.spawn(async move {
            let Ok(turn) = inner.heavy.acquire().await else { return };
            let store = Arc::clone(&inner.shared.store);
            let told = to.clone();
            let check =
                move || store.upkeep().check(&mut |line| told.blocking_send(Ok(line)).is_ok());
            let checked = inner.shared.tasks.spawn_blocking(check).await;
            drop(turn);
            if let Ok(Err(error)) = checked {
                // The receiver may have been dropped.
                let _ = to.send(Err(error.into())).await;
            }
        });
        Ok(lines)
    }
}

fn copy(store: &dyn Store, dir: &Path) -> Result<(File, u64), StoreError> {
    let path = dir.join(format!(".backup-{}", uuid::Uuid::new_v4().simple()));
    let fault = |verb: &str, error: std::io::Error| StoreError::Database {
        context: format!("{verb} {}", path.display()),
        reason: error.to_string(),
    };
    std::fs::create_dir_all(dir).map_err(|error| fault("make room for", error))?;
    let size = store.upkeep().backup(&path)?;
    let file = File::open(&path).map_err(|error| fault("open", error))?;
    std::fs::remove_file(&path).map_err(|error| fault("remove", error))?;
    Ok((file, size))
}
