//! A copy of everything, while it is in use.

use std::{fs::File, path::Path};

use super::{Caller, Engine, EngineError};
use crate::{
    store::{Store, StoreError},
    token::Verb,
};

impl Engine {
    /// One state of the whole database as a file of its own, to be read from its beginning, and its
    /// size in bytes. It has no name any more and is gone when it is closed.
    ///
    /// Everything that was acknowledged before the call is in it. One copy is made at a time.
    ///
    /// # Errors
    /// When the caller may not, or there is no room for the copy.
    pub async fn backup(&self, caller: &Caller) -> Result<(File, u64), EngineError> {
        caller.grant.check(Verb::HostBackup, &[])?;
        let _turn = self.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let dir = self.shared().settings.work.clone();
        self.read(move |store| copy(store, &dir)).await
    }
}

fn copy(store: &dyn Store, dir: &Path) -> Result<(File, u64), StoreError> {
    let path = dir.join(format!(".backup-{}", uuid::Uuid::new_v4().simple()));
    let fault = |verb: &str, error: std::io::Error| StoreError::Database {
        context: format!("{verb} {}", path.display()),
        reason: error.to_string(),
    };
    std::fs::create_dir_all(dir).map_err(|error| fault("make room for", error))?;
    let size = store.backup(&path)?;
    let file = File::open(&path).map_err(|error| fault("open", error))?;
    std::fs::remove_file(&path).map_err(|error| fault("remove", error))?;
    Ok((file, size))
}
