//! The socket in the data directory, for the commands of this machine.
//!
//! Only this user and root can open the socket: its mode is 0600, and the host asks the kernel who
//! connects. A token is needed all the same.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::UnixListener;

/// The name of the socket.
const NAME: &str = "moonswarm.sock";
/// The name under which it is made; no longer than its own.
const DRAFT: &str = "new.sock";
/// The maximum length of a socket's path, in bytes; `sun_path` has one more, for its end.
const LONGEST: usize = 107;

/// The socket of a data directory, for those who connect to it.
#[derive(Debug, Clone)]
pub struct Socket {
    path: PathBuf,
    /// Open as long as the path goes through it.
    _dir: Option<Arc<fs::File>>,
}

impl Socket {
    /// Returns the socket in a data directory, if the owner of the directory has made one. It may be
    /// one that a host left behind.
    pub fn of(data: &Path) -> Option<Self> {
        let (dir, socket) = (fs::metadata(data).ok()?, fs::symlink_metadata(data.join(NAME)).ok()?);
        if !socket.file_type().is_socket() || socket.uid() != dir.uid() {
            return None;
        }
        Self::at(data).ok()
    }

    fn at(data: &Path) -> io::Result<Self> {
        let path = std::path::absolute(data)?.join(NAME);
        if path.as_os_str().as_bytes().len() <= LONGEST {
            return Ok(Self { path, _dir: None });
        }
        // The kernel's limit is on what it is given: a path through an open directory is short.
        use std::os::fd::AsRawFd as _;
        let dir = fs::File::open(data)?;
        let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(NAME);
        Ok(Self { path, _dir: Some(Arc::new(dir)) })
    }

    /// Returns the path to connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A socket that this host has made; dropped, it is removed.
#[derive(Debug)]
pub(super) struct Bound {
    path: PathBuf,
    inode: u64,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            // A socket that stays is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the socket of a data directory, which this host owns. One that a host left behind is
/// replaced.
pub(super) fn bind(data: &Path) -> io::Result<(UnixListener, Bound)> {
    let (path, draft) = (data.join(NAME), data.join(DRAFT));
    if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Err(io::Error::other(format!("{} is no socket; remove it", path.display())));
    }
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let at = Socket::at(data)?;
    let listener = UnixListener::bind(at.path.with_file_name(DRAFT))?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(&draft)?.ino();
    // Nobody finds it before only this user can open it.
    fs::rename(&draft, &path)?;
    Ok((listener, Bound { path, inode }))
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_found_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Socket::of(dir.path()).is_none());
        let (left, bound) = bind(dir.path()).unwrap();
        let meta = fs::metadata(dir.path().join(NAME)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        std::mem::forget(bound);
        drop(left);
        let found = Socket::of(dir.path()).unwrap();
        assert!(UnixStream::connect(found.path()).await.is_err(), "nobody listens");
        let (_listener, bound) = bind(dir.path()).unwrap();
        UnixStream::connect(found.path()).await.unwrap();
        let (_another, second) = bind(dir.path()).unwrap();
        drop(bound);
        assert!(Socket::of(dir.path()).is_some(), "it is not ours any more");
        drop(second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_path_may_be_longer_than_the_kernel_takes() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("d".repeat(200));
        fs::create_dir(&data).unwrap();
        let (_listener, _bound) = bind(&data).unwrap();
        UnixStream::connect(Socket::of(&data).unwrap().path()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_in_its_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), "mine").unwrap();
        assert!(bind(dir.path()).unwrap_err().to_string().contains("is no socket"));
        assert!(Socket::of(dir.path()).is_none());
        assert_eq!(fs::read(dir.path().join(NAME)).unwrap(), b"mine");
    }
}
