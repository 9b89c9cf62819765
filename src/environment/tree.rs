//! The directories that children wrote: removed whole, and searched for a text. No symbolic link is
//! followed.

use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use memchr::memmem::Finder;
use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, SeekFrom, openat, renameat, seek, unlinkat},
    io::Errno,
    path::Arg,
};

/// The number of bytes of a file that are read at a time.
const CHUNK: usize = 64 << 10;
/// The number of directories that wait for a search; more are not read, and counted.
const PENDING: usize = 65_536;

/// The result of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeSearch {
    /// True if a name, a link or a file has the text.
    pub found: bool,
    /// The number of files and directories that could not be read.
    pub unread: u64,
}

impl TreeSearch {
    /// Counts what could not be read. What was removed meanwhile has nothing.
    fn miss(&mut self, error: &io::Error) {
        self.unread += u64::from(error.kind() != io::ErrorKind::NotFound);
    }
}

/// Removes a directory with its content, even if its owner has no access to a part of it, and
/// however deep it is. A directory that is not there is no error.
///
/// # Errors
/// Fails when a part of it cannot be removed, such as a file of another user; the rest is removed.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    let top = match open_up(CWD, dir) {
        Ok(top) => top,
        // A link goes alone.
        Err(Errno::NOTDIR) => return unless_gone(fs::remove_file(dir)),
        Err(error) => return unless_gone(Err(error.into())),
    };
    let mut removal = Removal::of(&top);
    removal.empty(&top, true);
    removal.empty_the_rest();
    let removed = unless_gone(fs::remove_dir(dir));
    removed.map_err(|error| removal.error.unwrap_or(error))
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Holds a directory, and gives its owner access to it. A symbolic link is not followed.
fn open_up(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = openat(parent, name, flags, Mode::empty())?;
    // The directory itself, whatever has its name by now. A file that is only held has no mode to set.
    let same = format!("/proc/self/fd/{}", held.as_raw_fd());
    // One of another user stays as it is; whatever cannot be removed is reported then.
    let _ = fs::set_permissions(same, fs::Permissions::from_mode(0o700));
    Ok(held)
}

/// A removal: each directory is moved to the top before it is emptied, so that a few descriptors
/// do for any depth, and whoever still writes there cannot lead it elsewhere.
struct Removal<'a> {
    top: &'a OwnedFd,
    /// The directories in the top that are not empty.
    full: Vec<CString>,
    /// A name that nobody else uses, and the number of directories that got it.
    name: uuid::Uuid,
    moved: u64,
    /// The first failure.
    error: Option<io::Error>,
}

impl<'a> Removal<'a> {
    fn of(top: &'a OwnedFd) -> Self {
        Self { top, full: Vec::new(), name: uuid::Uuid::new_v4(), moved: 0, error: None }
    }

    /// Removes the files of a directory, and moves its directories to the top.
    fn empty(&mut self, dir: &OwnedFd, is_top: bool) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = match openat(dir, ".", flags, Mode::empty()).and_then(Dir::new) {
            Ok(entries) => entries,
            Err(error) => return self.note(Err(error)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.note(Err(error)),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match unlinkat(dir, name, AtFlags::empty()) {
                Err(Errno::ISDIR) if is_top => self.full.push(name.to_owned()),
                Err(Errno::ISDIR) => self.move_up(dir, name),
                removed => self.note(removed),
            }
        }
    }

    fn move_up(&mut self, dir: &OwnedFd, name: &CStr) {
        if unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok() {
            return;
        }
        // Only a directory that can be written can be moved.
        if let Err(error) = open_up(dir, name) {
            return self.note(Err(error));
        }
        let to = CString::new(format!("{}-{}", self.name, self.moved)).expect("no zero byte");
        self.moved += 1;
        match renameat(dir, name, self.top, &to) {
            Ok(()) => self.full.push(to),
            failed => self.note(failed),
        }
    }

    fn empty_the_rest(&mut self) {
        while let Some(name) = self.full.pop() {
            if unlinkat(self.top, &name, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            match open_up(self.top, &name) {
                Ok(dir) => {
                    self.empty(&dir, false);
                    self.note(unlinkat(self.top, &name, AtFlags::REMOVEDIR));
                }
                // Something else has its name by now.
                Err(Errno::NOTDIR) => self.note(unlinkat(self.top, &name, AtFlags::empty())),
                Err(error) => self.note(Err(error)),
            }
        }
    }

    fn note(&mut self, result: Result<(), Errno>) {
        if let Err(error) = result
            && error != Errno::NOENT
        {
            self.error.get_or_insert_with(|| error.into());
        }
    }
}

/// Looks for texts below a directory: in the names, in the targets of links, and in the content of
/// files, a part at a time. Ends at the first place, or once `is_over`. Blocks.
pub fn search_tree(dir: &Path, texts: &[Finder<'_>], is_over: &dyn Fn() -> bool) -> TreeSearch {
    let mut search = TreeSearch::default();
    match fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return search,
        Err(error) => {
            search.miss(&error);
            return search;
        }
    }
    let overlap = texts.iter().map(|text| text.needle().len()).max().unwrap_or(1);
    let mut buffer = vec![0; CHUNK + overlap];
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) => {
                search.miss(&error);
                continue;
            }
        };
        for entry in entries {
            if is_over() {
                return search;
            }
            let looked = entry.and_then(|entry| {
                if has(entry.file_name().as_bytes(), texts) {
                    return Ok(Look::Found);
                }
                look(&entry, texts, &mut buffer, is_over)
            });
            match looked {
                Ok(Look::Found) => {
                    search.found = true;
                    return search;
                }
                Ok(Look::Nothing) => {}
                Ok(Look::Below(dir)) if pending.len() < PENDING => pending.push(dir),
                Ok(Look::Below(_)) => search.unread += 1,
                Err(error) => search.miss(&error),
            }
        }
    }
    search
}

/// The result of a look at one entry of a directory.
enum Look {
    Found,
    Nothing,
    /// The entry is a directory, which is still to be searched.
    Below(PathBuf),
}

fn look(
    entry: &fs::DirEntry,
    texts: &[Finder<'_>],
    buffer: &mut [u8],
    is_over: &dyn Fn() -> bool,
) -> io::Result<Look> {
    let (kind, path) = (entry.file_type()?, entry.path());
    let is_found = if kind.is_dir() {
        return Ok(Look::Below(path));
    } else if kind.is_symlink() {
        has(fs::read_link(&path)?.as_os_str().as_bytes(), texts)
    } else {
        // A pipe, a socket or a device keeps nothing.
        kind.is_file() && file_has(&path, texts, buffer, is_over)?
    };
    Ok(if is_found { Look::Found } else { Look::Nothing })
}

/// Looks into a file, as long as it is now: a child may write to it for ever. Holes are skipped.
/// The end of each part is looked at again with the next one.
fn file_has(
    path: &Path,
    texts: &[Finder<'_>],
    buffer: &mut [u8],
    is_over: &dyn Fn() -> bool,
) -> io::Result<bool> {
    // It may have become something else since its directory was read.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(false);
    }
    let overlap = buffer.len() - CHUNK;
    let (mut at, mut held) = (0, 0);
    while at < meta.len() && !is_over() {
        match seek(&file, SeekFrom::Data(at)) {
            Ok(data) if data > at => (at, held) = (data, 0),
            Err(Errno::NXIO) => break,
            // A file system that knows no holes is read as it is.
            Ok(_) | Err(_) => {}
        }
        let most = usize::try_from(meta.len().saturating_sub(at)).unwrap_or(CHUNK).min(CHUNK);
        let read = match file.read(&mut buffer[held..held + most]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        at += read as u64;
        let end = held + read;
        if has(&buffer[..end], texts) {
            return Ok(true);
        }
        held = overlap.min(end);
        buffer.copy_within(end - held..end, 0);
    }
    Ok(false)
}

fn has(bytes: &[u8], texts: &[Finder<'_>]) -> bool {
    texts.iter().any(|text| text.find(bytes).is_some())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TEXT: &str = "zachariasquux4711";

    fn search(dir: &Path) -> TreeSearch {
        search_tree(dir, &[Finder::new(TEXT)], &|| false)
    }

    fn close(dir: &Path) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o000)).unwrap();
    }

    #[test]
    fn a_tree_goes_whole_also_if_a_part_of_it_is_closed_and_nothing_behind_a_link_goes() {
        let root = tempfile::tempdir().unwrap();
        let (tree, other) = (root.path().join("tree"), root.path().join("other"));
        fs::create_dir_all(tree.join("closed/deep")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(tree.join("closed/deep/a"), TEXT).unwrap();
        fs::write(other.join("b"), TEXT).unwrap();
        symlink(&other, tree.join("closed/secrets")).unwrap();
        symlink(&other, tree.join("secrets")).unwrap();
        close(&tree.join("closed/deep"));
        close(&tree.join("closed"));
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
        // A link in the place of the directory goes alone.
        symlink(&other, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err());
        assert_eq!(fs::read_to_string(other.join("b")).unwrap(), TEXT);
    }

    #[test]
    fn no_mode_is_set_behind_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (other, link) = (root.path().join("other"), root.path().join("link"));
        fs::create_dir(&other).unwrap();
        close(&other);
        symlink(&other, &link).unwrap();
        assert_eq!(open_up(CWD, &link).unwrap_err(), Errno::NOTDIR);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&other), 0);
        open_up(CWD, &other).unwrap();
        assert_eq!(mode(&other), 0o700);
    }

    #[test]
    fn a_tree_of_any_depth_goes() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        fs::create_dir(&tree).unwrap();
        // Deeper than a path may be long, and than a process may have descriptors.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        for _ in 0..5_000 {
            for name in ["deep", "beside"] {
                rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o700)).unwrap();
            }
            at = openat(&at, "deep", flags, Mode::empty()).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn what_can_be_removed_goes_beside_what_cannot() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        for n in 0..9 {
            fs::create_dir_all(tree.join(format!("{n}/deep"))).unwrap();
            fs::write(tree.join(format!("{n}/deep/a")), TEXT).unwrap();
        }
        let top = open_up(CWD, &tree).unwrap();
        let mut removal = Removal { full: vec![c"nobody".to_owned()], ..Removal::of(&top) };
        // As for a file that may not be removed.
        removal.note(Err(Errno::PERM));
        removal.empty(&top, true);
        removal.empty_the_rest();
        assert_eq!(removal.error.unwrap().raw_os_error(), Some(Errno::PERM.raw_os_error()));
        assert_eq!(fs::read_dir(&tree).unwrap().count(), 0);
    }

    #[test]
    fn holes_are_skipped_and_the_text_behind_them_is_found() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 33).unwrap();
        assert_eq!(search(root.path()), TreeSearch::default());
        file.write_all_at(TEXT.as_bytes(), (1 << 32) + 5).unwrap();
        assert!(search(root.path()).found);
    }

    #[test]
    fn a_text_is_found_in_files_names_and_links_and_not_behind_them() {
        let root = tempfile::tempdir().unwrap();
        let (tree, other) = (root.path().join("tree"), root.path().join("other"));
        fs::create_dir_all(tree.join("deep/er")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("b"), TEXT).unwrap();
        symlink(&other, tree.join("deep/link")).unwrap();
        fs::write(tree.join("deep/er/a"), "nobody").unwrap();
        assert_eq!(search(&tree), TreeSearch::default());
        // At the border of two parts, wherever it is cut.
        for before in (CHUNK - TEXT.len()..=CHUNK + TEXT.len()).chain([3 * CHUNK - 5]) {
            let mut bytes = vec![b'x'; before];
            bytes.extend_from_slice(TEXT.as_bytes());
            bytes.extend_from_slice(&[b'y'; 7]);
            fs::write(tree.join("deep/er/a"), &bytes).unwrap();
            assert!(search(&tree).found, "{before}");
        }
        fs::remove_file(tree.join("deep/er/a")).unwrap();
        symlink(format!("/{TEXT}"), tree.join("deep/to")).unwrap();
        assert!(search(&tree).found);
        fs::remove_file(tree.join("deep/to")).unwrap();
        fs::create_dir(tree.join(format!("a-{TEXT}-b"))).unwrap();
        assert!(search(&tree).found);
        // A directory that is a link, and one that is not there.
        symlink(&other, root.path().join("link")).unwrap();
        assert_eq!(search(&root.path().join("link")), TreeSearch::default());
        assert_eq!(search(&root.path().join("nowhere")), TreeSearch::default());
    }

    #[test]
    fn what_cannot_be_read_is_counted() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("closed")).unwrap();
        fs::write(root.path().join("closed/a"), TEXT).unwrap();
        fs::write(root.path().join("b"), "nobody").unwrap();
        close(&root.path().join("b"));
        close(&root.path().join("closed"));
        // Root reads everything.
        let want = match rustix::process::geteuid().is_root() {
            true => TreeSearch { found: true, unread: 0 },
            false => TreeSearch { found: false, unread: 2 },
        };
        assert_eq!(search(root.path()), want);
        remove_tree(&root.path().join("closed")).unwrap();
    }
}
