//! A file that appears whole or not at all.

use std::{
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use reqwest::Response;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::exit::{Exit, Stop};

/// A file that is written beside its place until it is whole.
pub struct Download {
    to: PathBuf,
    draft: PathBuf,
    force: bool,
}

impl Download {
    /// A file at `to`, which replaces another one only with `force`.
    ///
    /// # Errors
    /// Fails when there is one already, or no such directory.
    pub fn new(to: &Path, force: bool) -> Result<Self> {
        if !force && to.exists() {
            return Err(exists(to));
        }
        let name = to.file_name().with_context(|| format!("name a file in {}", to.display()))?;
        let draft = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        Ok(Self { to: to.to_owned(), draft: to.with_file_name(draft), force })
    }

    /// Writes what an answer holds, synced, and gives its size.
    ///
    /// # Errors
    /// An answer that breaks off, a disk that is full, a file that came meanwhile.
    pub async fn fill(self, answer: Response) -> Result<u64> {
        let announced = answer.content_length();
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.draft)
            .with_context(|| format!("write {}", self.draft.display()))?;
        let mut written = 0;
        let mut bytes = answer.bytes_stream();
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.context("read the daemon's answer")?;
            file.write_all(&chunk).with_context(|| format!("write {}", self.draft.display()))?;
            written += chunk.len() as u64;
        }
        anyhow::ensure!(
            announced.is_none_or(|announced| announced == written),
            "read the daemon's answer: it broke off after {written} bytes"
        );
        file.sync_all().with_context(|| format!("sync {}", self.draft.display()))?;
        self.put()?;
        Ok(written)
    }

    fn put(&self) -> Result<()> {
        let rename = || std::fs::rename(&self.draft, &self.to);
        let put = match self.force {
            true => rename(),
            false => match renameat_with(CWD, &self.draft, CWD, &self.to, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Err(exists(&self.to)),
                // Not every file system can refuse; it was looked at before.
                Err(Errno::INVAL | Errno::NOSYS) => rename(),
                other => other.map_err(Into::into),
            },
        };
        put.with_context(|| format!("write {}", self.to.display()))?;
        let dir = self.to.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        std::fs::File::open(dir)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("sync {}", dir.display()))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // After a success it has the other name.
        let _ = std::fs::remove_file(&self.draft);
    }
}

fn exists(to: &Path) -> anyhow::Error {
    Stop::new(Exit::Conflict, format!("{} exists", to.display()))
        .next("--force replaces it; nothing was written")
        .into()
}
