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
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use super::{
    Secret,
    cgroup::{DYING_PAUSE, DYING_TRIES},
    tree::remove_tree,
};

/// The directory of the attempts, below `work`.
pub(crate) const ATTEMPTS: &str = ".attempts";
/// The part of an attempt's directory that its child sees.
pub(crate) const ROOM: &str = "room";

/// The directory of one attempt.
#[derive(Debug)]
pub(super) struct AttemptDir(PathBuf);

/// Creates a directory that only its owner can enter, and those above it.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl AttemptDir {
    /// Creates the directory. Removes an earlier one of the same name.
    pub(super) fn make(root: &Path, name: &str) -> io::Result<Self> {
        let dir = root.join(name);
        remove(&dir)?;
        make_private(root)?;
        let place = Self(dir);
        make_private(&place.0)?;
        for dir in [place.secrets(), place.room(), place.work(), place.tmp()] {
            make_private(&dir)?;
        }
        Ok(place)
    }

    pub(super) fn secrets(&self) -> PathBuf {
        self.0.join("secrets")
    }

    pub(super) fn room(&self) -> PathBuf {
        self.0.join(ROOM)
    }

    pub(super) fn work(&self) -> PathBuf {
        self.room().join("work")
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.room().join("tmp")
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
            Err(_) => remove(&dir),
        }
    }
}

impl Drop for AttemptDir {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() {
            return;
        }
        if let Err(error) = remove(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "an attempt's directory is left");
        }
    }
}

/// Removes the directories of an earlier host's attempts. Returns their number.
pub(super) fn sweep(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir(root) else { return 0 };
    let mut swept = 0;
    for entry in entries.flatten() {
        let mut removed = remove(&entry.path());
        // A child of a killed host ends a moment later, and may write until then.
        for _ in 0..DYING_TRIES {
            if removed.is_ok() {
                break;
            }
            std::thread::park_timeout(DYING_PAUSE);
            removed = remove(&entry.path());
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

/// Removes the directory of an attempt: first its secrets, which are overwritten.
fn remove(dir: &Path) -> io::Result<()> {
    wipe(&dir.join("secrets"));
    remove_tree(dir)
}

/// Overwrites the files of a directory. Best effort: a child may have changed it. No symbolic link is
/// followed: what is behind it is no secret of this attempt.
fn wipe(secrets: &Path) {
    if !fs::symlink_metadata(secrets).is_ok_and(|meta| meta.is_dir()) {
        return;
    }
    let Ok(entries) = fs::read_dir(secrets) else { return };
    for entry in entries.flatten() {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(entry.path(), flags, Mode::empty()) else { continue };
        let mut file = fs::File::from(file);
        let Ok(meta) = file.metadata() else { continue };
        if !meta.is_file() {
            continue;
        }
        let _ = io::copy(&mut io::Read::take(io::repeat(0), meta.len()), &mut file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn nothing_behind_a_link_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("x"), "kept").unwrap();
        let place = AttemptDir::make(&root.path().join("attempts"), "a").unwrap();
        std::os::unix::fs::symlink(other.join("x"), place.secrets().join("x")).unwrap();
        drop(place);
        let place = AttemptDir::make(&root.path().join("attempts"), "a").unwrap();
        fs::remove_dir(place.secrets()).unwrap();
        std::os::unix::fs::symlink(&other, place.secrets()).unwrap();
        drop(place);
        assert_eq!(fs::read_to_string(other.join("x")).unwrap(), "kept");
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
