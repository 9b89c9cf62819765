//! The directory of one attempt: created empty, removed with its content.
//!
//! ```text
//! <data>/work/.attempts/<run>-<step>-<attempt>/
//!   secrets/       files of credentials, 0600
//!   room/work      the initial working directory of the child
//!   room/tmp       its TMPDIR
//! ```

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    Secret,
    cgroup::{DYING_PAUSE, DYING_TRIES},
};

/// The directory of one attempt.
#[derive(Debug)]
pub(super) struct AttemptDir(PathBuf);

impl AttemptDir {
    /// Creates the directory. Removes an earlier one of the same name.
    pub(super) fn make(root: &Path, name: &str) -> io::Result<Self> {
        let dir = root.join(name);
        remove_tree(&dir)?;
        let private = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        private(root)?;
        let place = Self(dir);
        private(&place.0)?;
        for dir in [place.secrets(), place.room(), place.work(), place.tmp()] {
            private(&dir)?;
        }
        Ok(place)
    }

    pub(super) fn secrets(&self) -> PathBuf {
        self.0.join("secrets")
    }

    pub(super) fn room(&self) -> PathBuf {
        self.0.join("room")
    }

    pub(super) fn work(&self) -> PathBuf {
        self.0.join("room/work")
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.0.join("room/tmp")
    }

    /// Writes a secret to a file that only its owner can read.
    pub(super) fn put_secret(&self, name: &str, secret: &Secret) -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.secrets().join(name))?;
        file.write_all(secret.expose().as_bytes())
    }

    /// Removes the directory: first the secrets, which are overwritten, then the rest, without
    /// blocking the runtime.
    pub(super) async fn remove(mut self) -> io::Result<()> {
        let dir = std::mem::take(&mut self.0);
        wipe(&dir.join("secrets"));
        match tokio::fs::remove_dir_all(&dir).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A child may have removed its owner's access to a directory.
            Err(_) => remove_tree(&dir),
        }
    }
}

impl Drop for AttemptDir {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() {
            return;
        }
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "an attempt's directory is left");
        }
    }
}

/// Removes the directories of an earlier host's attempts. Returns their number.
pub(super) fn sweep(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir(root) else { return 0 };
    let mut swept = 0;
    for entry in entries.flatten() {
        let mut removed = remove_tree(&entry.path());
        // A child of a killed host ends a moment later, and may write until then.
        for _ in 0..DYING_TRIES {
            if removed.is_ok() {
                break;
            }
            std::thread::park_timeout(DYING_PAUSE);
            removed = remove_tree(&entry.path());
        }
        match removed {
            Ok(()) => swept += 1,
            Err(error) => {
                let dir = entry.path();
                tracing::warn!(dir = %dir.display(), %error, "an attempt's directory is left");
            }
        }
    }
    swept
}

/// Removes a directory with its content, even if its owner has no access to a part of it.
fn remove_tree(dir: &Path) -> io::Result<()> {
    wipe(&dir.join("secrets"));
    match fs::remove_dir_all(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    let mut closed = vec![dir.to_owned()];
    while let Some(dir) = closed.pop() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)?.flatten() {
            // A symbolic link is not a directory here, whatever its target.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                closed.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(dir)
}

/// Overwrites the files of a directory. Best effort: a child may have changed it.
fn wipe(secrets: &Path) {
    let Ok(entries) = fs::read_dir(secrets) else { return };
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_file() {
            continue;
        }
        let Ok(mut file) = fs::OpenOptions::new().write(true).open(entry.path()) else { continue };
        let _ = io::copy(&mut io::Read::take(io::repeat(0), meta.len()), &mut file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Text;

    #[test]
    fn a_place_goes_with_everything_in_it_also_when_nobody_says_so() {
        let root = tempfile::tempdir().unwrap();
        let place = AttemptDir::make(root.path(), "a").unwrap();
        let secret = Text::Plain("canary".to_owned()).resolve().unwrap();
        place.put_secret("token", &secret).unwrap();
        let mode = fs::metadata(place.secrets().join("token")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let closed = place.work().join("closed/deep");
        fs::create_dir_all(&closed).unwrap();
        fs::set_permissions(closed.parent().unwrap(), fs::Permissions::from_mode(0o000)).unwrap();
        std::os::unix::fs::symlink("/", place.work().join("link")).unwrap();
        drop(place);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_an_earlier_host_left_is_swept_and_a_name_begins_anew() {
        let root = tempfile::tempdir().unwrap();
        let left = AttemptDir::make(root.path(), "left").unwrap();
        fs::write(left.work().join("x"), "y").unwrap();
        std::mem::forget(left);
        let again = AttemptDir::make(root.path(), "left").unwrap();
        assert!(!again.work().join("x").exists());
        std::mem::forget(again);
        assert_eq!(sweep(root.path()), 1);
        let place = AttemptDir::make(root.path(), "b").unwrap();
        place.remove().await.unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
