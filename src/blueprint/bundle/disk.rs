//! Bundles on disk: reading the files that an entry refers to, and writing a bundle out for
//! child processes.

use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher as _, RandomState},
    io::{self, Write},
    path::{Component, Path},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Bundle, BundleError, MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, is_lua, module_candidates,
    relative,
};
use crate::blueprint::{
    locate::{Outline, Target, json_strings},
    regular::read_regular,
    template,
    tokens::{Token, tokens},
};

/// A random name of this process. Its id alone can be that of an earlier process.
static WRITER: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())));

impl Bundle {
    /// Reads a blueprint and the files that it refers to, directly or through its modules and
    /// templates, and no others. A file that is not there is left out: `check` finds it.
    ///
    /// # Errors
    /// Fails when the entry cannot be read, a reference leads through a symbolic link, a file is
    /// not text, or a limit is broken.
    pub fn load(path: &Path) -> Result<Self, BundleError> {
        let io = |source| BundleError::Io { path: path.display().to_string(), source };
        let entry = match path.components().next_back() {
            Some(Component::Normal(name)) => name
                .to_str()
                .ok_or_else(|| BundleError::NotText(path.display().to_string()))?
                .to_owned(),
            _ => return Err(io(io::Error::from(io::ErrorKind::IsADirectory))),
        };
        let root = path.parent().unwrap_or(Path::new(""));
        let metadata = fs::metadata(path).map_err(io)?;
        if !metadata.is_file() {
            return Err(io(io::Error::other("it is not a file")));
        }

        let text = read(path, &entry)?;
        Self::gather(entry, text, |path| match is_plain_file(root, path)? {
            true => read(&root.join(path), path).map(Some),
            false => Ok(None),
        })
    }

    /// Takes a blueprint and the files that it refers to from among `all`, as [`Bundle::load`] does
    /// from a directory. Returns `None` if the entry is not there.
    ///
    /// # Errors
    /// Fails when a limit is broken.
    pub fn select(
        all: &BTreeMap<String, Arc<str>>,
        path: &str,
    ) -> Result<Option<Self>, BundleError> {
        let Some(text) = all.get(path) else { return Ok(None) };
        let at = path.rfind('/').map_or(0, |slash| slash + 1);
        let (root, entry) = path.split_at(at);
        let find = |path: &str| Ok(all.get(&format!("{root}{path}")).map(Arc::clone));
        Self::gather(entry.to_owned(), Arc::clone(text), find).map(Some)
    }

    /// Follows the references from an entry.
    fn gather(
        entry: String,
        text: Arc<str>,
        find: impl Fn(&str) -> Result<Option<Arc<str>>, BundleError>,
    ) -> Result<Self, BundleError> {
        let mut bytes = text.len();
        let mut files = BTreeMap::from([(entry.clone(), text)]);
        let mut unread = vec![entry.clone()];
        while let Some(from) = unread.pop() {
            for candidates in references(&from, &files[&from]) {
                if candidates.iter().any(|path| files.contains_key(path)) {
                    continue;
                }
                let Some((path, text)) = first_present(&find, candidates)? else {
                    continue;
                };
                bytes += text.len();
                if bytes > MAX_BUNDLE_BYTES {
                    return Err(BundleError::TooLarge);
                }
                if files.len() == MAX_FILES {
                    return Err(BundleError::TooManyFiles);
                }
                unread.push(path.clone());
                files.insert(path, text);
            }
        }
        Self::from_files(files, Some(&entry))
    }

    /// Returns true if the name of a directory is one that this process gives to what it is writing.
    pub fn is_being_written(name: &str) -> bool {
        name.split_once('.').is_some_and(|(_, staged)| {
            staged.split_once('-').is_some_and(|(writer, _)| writer == *WRITER)
        })
    }

    /// Writes all files, read-only, into the directory `to`, which appears with all of them or
    /// not at all. If it is already there, it is left as it is.
    ///
    /// # Errors
    /// Fails when the disk returns an error.
    pub fn write_to(&self, to: &Path) -> Result<(), BundleError> {
        static STAGED: AtomicU64 = AtomicU64::new(0);
        if to.is_dir() {
            return Ok(());
        }
        let number = STAGED.fetch_add(1, Ordering::Relaxed);
        let staging = to.with_extension(format!("{}-{number}.partial", *WRITER));
        let written = self.write_files(&staging).and_then(|()| fs::rename(&staging, to));
        match written {
            Ok(()) => Ok(()),
            Err(source) => {
                // What is staged is worthless now; the error that matters is the first.
                let _ = fs::remove_dir_all(&staging);
                if to.is_dir() {
                    return Ok(());
                }
                Err(BundleError::Io { path: to.display().to_string(), source })
            }
        }
    }

    fn write_files(&self, directory: &Path) -> io::Result<()> {
        for (path, text) in self.files() {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut file = fs::File::create_new(&path)?;
            file.write_all(text.as_bytes())?;
            let mut permissions = file.metadata()?.permissions();
            permissions.set_readonly(true);
            file.set_permissions(permissions)?;
        }
        Ok(())
    }
}

/// The files that a file refers to, each as its candidates.
fn references(from: &str, text: &str) -> Vec<Vec<String>> {
    let single = |name: &str| relative(name).into_iter().collect::<Vec<_>>();
    if !is_lua(from) {
        let mut included = template::includes(text);
        let mut started = Vec::new();
        if from.ends_with(".json") {
            // In a string, the quotes of a name are escaped.
            let texts = json_strings(text).into_iter();
            included.extend(texts.flat_map(|(_, text)| template::includes(&text)));
            started.extend(programs(from, text));
        }
        let named = included.into_iter().map(|it| it.name).chain(started);
        return named.map(|name| single(&name)).collect();
    }
    let outline = Outline::of(text);
    let named = outline.references.iter().map(|reference| match reference.target {
        Target::Module => module_candidates(from, &reference.name),
        _ => single(&reference.name),
    });
    named.chain(programs(from, text).iter().map(|name| single(name))).collect()
}

/// The files that commands run from the bundle: strings such as `{{ bundle }}/worker.py`, in the
/// text of the file at a path.
pub(in crate::blueprint) fn programs(path: &str, text: &str) -> Vec<String> {
    let texts: Vec<String> = match path.ends_with(".json") {
        true => json_strings(text).into_iter().map(|(_, text)| text).collect(),
        false => tokens(text).iter().filter_map(Token::text).collect(),
    };
    texts.iter().filter_map(|text| program(text)).map(str::to_owned).collect()
}

/// The file of the bundle that a string such as `{{ bundle }}/worker.py` names.
pub(in crate::blueprint) fn program(text: &str) -> Option<&str> {
    let inside = text.trim_start().strip_prefix("{{")?.trim_start().strip_prefix("bundle")?;
    inside.trim_start().strip_prefix("}}/")
}

fn first_present(
    find: &impl Fn(&str) -> Result<Option<Arc<str>>, BundleError>,
    candidates: Vec<String>,
) -> Result<Option<(String, Arc<str>)>, BundleError> {
    for candidate in candidates {
        if let Some(text) = find(&candidate)? {
            return Ok(Some((candidate, text)));
        }
    }
    Ok(None)
}

/// Returns true if a path below `root` is a file that no symbolic link leads to.
fn is_plain_file(root: &Path, path: &str) -> Result<bool, BundleError> {
    let mut at = root.to_owned();
    let mut is_file = false;
    for segment in path.split('/') {
        at.push(segment);
        match fs::symlink_metadata(&at) {
            Ok(metadata) if metadata.is_symlink() => {
                let reason = "a symbolic link leads to it, possibly out of the bundle";
                return Err(BundleError::Path { path: path.to_owned(), reason });
            }
            Ok(metadata) => is_file = metadata.is_file(),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(false);
            }
            Err(source) => {
                return Err(BundleError::Io { path: path.to_owned(), source });
            }
        }
    }
    Ok(is_file)
}

fn read(path: &Path, name: &str) -> Result<Arc<str>, BundleError> {
    let io = |source| BundleError::Io { path: name.to_owned(), source };
    let bytes = match read_regular(path, MAX_FILE_BYTES as u64) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(BundleError::FileTooLarge(name.to_owned()));
        }
        read => read.map_err(io)?,
    };
    let text = String::from_utf8(bytes).map_err(|_| BundleError::NotText(name.to_owned()))?;
    Ok(text.into())
}
