//! Hides the data directory, with its keys, tokens and database, from children.
//!
//! In a mount namespace of the child, an empty directory covers it, with only the child's own
//! directories inside. A user without the privilege to create one gets a user namespace first,
//! which also hides the host's memory and files in `/proc`. Root stays root, also there; Landlock
//! prevents it from removing the cover and from reading the host's `/proc`.

use std::{
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
    thread::{CapabilitySet, CapabilitySets, UnshareFlags},
};
use serde::{Deserialize, Serialize};

use super::{paths, place::ATTEMPTS};

/// The directory to cover, and the paths inside it that stay visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cover {
    data: PathBuf,
    keep: Vec<PathBuf>,
}

impl Cover {
    /// Creates a cover for a data directory. Ignores paths of `keep` that are outside it, or that
    /// would expose all of it, of `work` or of `.attempts`.
    pub(super) fn new(data: PathBuf, keep: impl IntoIterator<Item = PathBuf>) -> Self {
        let work = data.join("work");
        let attempts = work.join(ATTEMPTS);
        let mut keep: Vec<_> = keep
            .into_iter()
            .filter(|path| path.starts_with(&data))
            .filter(|path| ![&data, &work, &attempts].contains(&path))
            .collect();
        keep.sort();
        keep.dedup_by(|deeper, path| deeper.starts_with(path));
        Self { data, keep }
    }

    /// Mounts the cover, in this process's own mount namespace.
    pub(super) fn put(&self) -> io::Result<()> {
        let apart = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", apart)?;
        let kept = self.keep.iter().map(|path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map(|fd| (path, fd))
        });
        let kept = kept.collect::<Result<Vec<_>, _>>()?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("moonswarm", &self.data, "tmpfs", flags, Some(c"size=1m,mode=0755"))?;
        for (path, _) in &kept {
            fs::create_dir_all(path)?;
        }
        for (path, fd) in &kept {
            let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::mount::mount_bind_recursive(from, *path)?;
        }
        let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
        Ok(rustix::mount::mount_remount(&self.data, flags, c"")?)
    }
}

/// Drops the capabilities with which root could read the host's memory, or open a file behind a
/// cover.
pub(super) fn give_up_looking_around() -> io::Result<()> {
    let around = [
        CapabilitySet::SYS_ADMIN,
        CapabilitySet::PERFMON,
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::DAC_READ_SEARCH,
    ];
    for capability in around {
        // Older kernels do not know all of them.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let now = rustix::thread::capabilities(None)?;
    let none = CapabilitySet::empty();
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { inheritable: none, ..now })?)
}

/// Enters new namespaces within a new user namespace, in which this process is the user that it was.
/// The process must have only one thread. Returns true if programs that it executes are privileged
/// there, which they are for root.
pub(super) fn unshare_as_user(flags: UnshareFlags) -> io::Result<bool> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    unshare(flags | UnshareFlags::NEWUSER)?;
    let same = |id: u32| format!("{id} {id} 1");
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", same(uid.as_raw()))?;
    fs::write("/proc/self/gid_map", same(gid.as_raw()))?;
    Ok(uid.is_root())
}

/// Enters new namespaces: the calling thread, and what it starts.
#[expect(deprecated, reason = "its danger is a table of files that threads no longer share")]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}

/// Covers a directory for a test, and checks that the cover holds.
pub(super) fn probe(data: &Path, part: impl Fn() -> io::Result<bool>) -> Result<(), String> {
    let cover = Cover::new(data.to_owned(), []);
    let privileged = part()
        .and_then(|privileged| cover.put().map(|()| privileged))
        .map_err(|error| format!("this machine makes no mount namespace ({error})"))?;
    if privileged {
        paths::stay()?;
        if rustix::mount::unmount(data, UnmountFlags::DETACH).is_ok() {
            return Err("root can take the cover off here".to_owned());
        }
    }
    match fs::read_dir(data).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the directory is still seen".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_deep_in_the_directory_and_named_once() {
        let data = PathBuf::from("/d");
        let keep =
            ["/d", "/d/work", "/d/work/.attempts", "/e", "/d/work/r/x", "/d/work/r", "/d/b/h"];
        let cover = Cover::new(data, keep.map(PathBuf::from));
        assert_eq!(cover.keep, [Path::new("/d/b/h"), Path::new("/d/work/r")]);
    }
}
