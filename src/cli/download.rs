//! A file that appears whole or not at all.

use std::{
    fs::Permissions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _};
use reqwest::Response;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use tokio::signal::unix::{SignalKind, signal};

use super::exit::{Exit, Stop};

/// A file that is written beside its place until it is whole.
pub struct Download {
    to: PathBuf,
    draft: PathBuf,
    force: bool,
    /// The mode of a new file, before the mask of the process.
    mode: u32,
    /// The permissions of the file that it replaces.
    as_before: Option<Permissions>,
}

impl Download {
    /// A file at `to` for its owner alone, which replaces another one only with `force`.
    ///
    /// # Errors
    /// Fails when there is one already, or no such directory.
    pub fn new(to: &Path, force: bool) -> Result<Self> {
        if !force && to.exists() {
            return Err(exists(to));
        }
        if to.is_dir() {
            return Err(Stop::usage(format!("{} is a directory", to.display()))
                .next("name a file in it")
                .into());
        }
        Ok(Self { to: to.to_owned(), draft: draft(to)?, force, mode: 0o600, as_before: None })
    }

    /// A file at `to` with the permissions of any new file, or with those of the file that it
    /// replaces. A link to a file stays one.
    ///
    /// # Errors
    /// Fails when `to` names no file, or one that may not be written.
    pub fn over(to: &Path) -> Result<Self> {
        let to = to.canonicalize().unwrap_or_else(|_| to.to_owned());
        let as_before = to.metadata().ok().map(|it| it.permissions());
        if as_before.is_some() {
            let open = std::fs::OpenOptions::new().write(true).open(&to);
            open.with_context(|| format!("write {}", to.display()))?;
        }
        Ok(Self { draft: draft(&to)?, to, force: true, mode: 0o666, as_before })
    }

    /// Writes what an answer holds, synced, and gives its size.
    ///
    /// # Errors
    /// An answer that breaks off, a disk that is full, a file that came meanwhile, a signal that
    /// ends the program.
    pub async fn fill(self, answer: Response) -> Result<u64> {
        let announced = answer.content_length();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            // Dropped, it removes the draft.
            filled = self.fill_with(answer.bytes_stream(), announced) => return filled,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Err(Stop::new(Exit::Interrupted, "interrupted: nothing was written").into())
    }

    async fn fill_with<T, E>(
        self,
        mut bytes: impl Stream<Item = Result<T, E>> + Unpin,
        announced: Option<u64>,
    ) -> Result<u64>
    where
        T: AsRef<[u8]>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(self.mode)
            .open(&self.draft)
            .with_context(|| format!("write {}", self.draft.display()))?;
        if let Some(as_before) = &self.as_before {
            file.set_permissions(as_before.clone())
                .with_context(|| format!("write {}", self.draft.display()))?;
        }
        let mut written = 0;
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.context("read the daemon's answer")?;
            let chunk = chunk.as_ref();
            file.write_all(chunk).with_context(|| format!("write {}", self.draft.display()))?;
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
        let dir = dir_of(&self.to);
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

/// Returns the directory of a file.
fn dir_of(to: &Path) -> &Path {
    to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the name of a file until it is whole; its directory must be there.
fn draft(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().with_context(|| format!("name a file in {}", to.display()))?;
    let dir = dir_of(to);
    if !dir.is_dir() {
        let dir = dir.display();
        let stop = Stop::usage(format!("there is no directory {dir}"));
        return Err(stop.next(format!("`mkdir -p {dir}`; nothing was written")).into());
    }
    let draft = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
    Ok(to.with_file_name(draft))
}

fn exists(to: &Path) -> anyhow::Error {
    Stop::new(Exit::Conflict, format!("{} exists", to.display()))
        .next("--force replaces it; nothing was written")
        .into()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Error, ErrorKind},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    /// Fills a file from an answer whose connection breaks after its first part, if it `breaks`.
    async fn fill(to: &Path, breaks: bool) -> Result<u64> {
        let end = match breaks {
            true => Err(Error::from(ErrorKind::ConnectionReset)),
            false => Ok("whole"),
        };
        let parts = futures::stream::iter([Ok("the "), end]);
        Download::over(to).unwrap().fill_with(parts, None).await
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_leaves_the_file_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        assert!(fill(&to, true).await.is_err());
        assert_eq!(names(dir.path()), [""; 0]);
        fs::write(&to, "before").unwrap();
        assert!(fill(&to, true).await.is_err());
        assert_eq!(fs::read_to_string(&to).unwrap(), "before");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_file_that_cannot_be_put_is_refused_before_anything_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |to: &Path| Download::new(to, true).err().unwrap().to_string();
        assert!(refused(&dir.path().join("none/file")).contains("there is no directory"));
        assert!(refused(dir.path()).contains("is a directory"));
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[tokio::test]
    async fn a_file_that_is_replaced_keeps_its_permissions_and_a_link_to_it_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (to, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&to, "before").unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o640)).unwrap();
        symlink(&to, &link).unwrap();
        assert_eq!(fill(&link, false).await.unwrap(), 9);
        assert_eq!(fs::read_to_string(&to).unwrap(), "the whole");
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mut names = names(dir.path());
        names.sort();
        assert_eq!(names, ["file", "link"]);
    }
}
