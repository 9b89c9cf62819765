//! Hides the data directory from children: keys, tokens and the database are not there for them.
//!
//! In a mount namespace of the child an empty directory stands in its place, with only what the
//! child was given in it. A user who may not make one gets a user namespace first, which also takes the
//! host's memory and files in `/proc` away. Root stays root; Landlock keeps it from taking the
//! cover off, and from looking through the host's `/proc`.

use std::{
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
};
use serde::{Deserialize, Serialize};

use super::paths;

/// What is covered, and what is seen in it all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cover {
    data: PathBuf,
    keep: Vec<PathBuf>,
}

impl Cover {
    /// Covers a data directory, but for what is deep enough in it to be nobody's key.
    pub(super) fn new(data: PathBuf, keep: impl IntoIterator<Item = PathBuf>) -> Self {
        let work = data.join("work");
        let attempts = work.join(".attempts");
        let mut keep: Vec<_> = keep
            .into_iter()
            .filter(|path| path.starts_with(&data))
            .filter(|path| ![&data, &work, &attempts].contains(&path))
            .collect();
        keep.sort();
        keep.dedup_by(|deeper, path| deeper.starts_with(path));
        Self { data, keep }
    }

    /// Covers it, in a mount namespace that is this process's own.
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

/// Tries it on a directory, and whether it holds.
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
