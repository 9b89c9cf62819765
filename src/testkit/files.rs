//! The files that a test may name: those on the disk beside it, or those that came with a request.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path},
    sync::Arc,
};

use super::request::usage;
use crate::{
    blueprint::{Bundle, BundleError, read_text},
    protocol::Failure,
};

/// The names of files that an error lists.
const NAMED: usize = 20;

/// Returns true if a file of this name is one of tests.
pub fn is_test(name: &str) -> bool {
    let stem = name.strip_suffix(".lua").or_else(|| name.strip_suffix(".luau"));
    stem.is_some_and(|stem| stem.ends_with("_test") || stem.ends_with(".test"))
}

/// The files of a request: a blueprint, its tests and what these use. Nothing else can be read.
#[derive(Debug, Clone)]
pub struct Posted {
    blueprint: Bundle,
    files: BTreeMap<String, Arc<str>>,
    tests: Vec<String>,
}

/// The reason why files are no request to run tests.
#[derive(Debug, thiserror::Error)]
pub enum PostedError {
    /// No file is one of tests.
    #[error("none of the files is one of tests: the name of such a file ends in _test.lua")]
    NoTests,
    /// The blueprint and its tests have a file of the same name.
    #[error("{0:?} is a file of the blueprint as well; call the test otherwise")]
    Twice(String),
    /// A path or a size.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

impl Posted {
    /// Takes a blueprint, and the files of tests with what is beside them.
    ///
    /// # Errors
    /// Fails when there is no file of tests, a path is not a plain relative one, or a limit of
    /// bundles is broken.
    pub fn new(blueprint: Bundle, tests: BTreeMap<String, Arc<str>>) -> Result<Self, PostedError> {
        let names: Vec<_> = tests.keys().filter(|path| is_test(path)).cloned().collect();
        let first = names.first().ok_or(PostedError::NoTests)?;
        let mut files = tests;
        for (path, text) in blueprint.files() {
            if files.insert(path.clone(), Arc::clone(text)).is_some() {
                return Err(PostedError::Twice(path.clone()));
            }
        }
        // It has the paths and the sizes of a bundle.
        Bundle::from_files(files.clone(), Some(first))?;
        Ok(Self { blueprint, files, tests: names })
    }

    /// Returns the paths of the files of tests.
    pub fn tests(&self) -> &[String] {
        &self.tests
    }

    fn bundle(&self, path: &Path) -> Result<Bundle, Failure> {
        let found = match plain(path) {
            // All of its files, as it is run.
            Some(name) if name == self.blueprint.entry() => Some(self.blueprint.clone()),
            Some(name) => Bundle::select(&self.files, &name).map_err(|it| usage(it.to_string()))?,
            None => None,
        };
        found.ok_or_else(|| {
            let mut names: Vec<_> = self.files.keys().map(String::as_str).take(NAMED).collect();
            if self.files.len() > NAMED {
                names.push("…");
            }
            usage(format!("there is no {} among the files: {}", path.display(), names.join(", ")))
        })
    }
}

/// The files that a test may name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Files<'a> {
    /// Those of the disk.
    Disk,
    /// Those of a request.
    Posted(&'a Posted),
}

impl Files<'_> {
    /// Returns a blueprint, or a file of tests, with the files that it refers to.
    ///
    /// # Errors
    /// Fails when it is not there, or cannot be read.
    pub(super) fn bundle(self, path: &Path) -> Result<Bundle, Failure> {
        match self {
            Self::Disk => Bundle::load(path).map_err(|error| usage(error.to_string())),
            Self::Posted(posted) => posted.bundle(path),
        }
    }

    /// Returns the text of a file.
    ///
    /// # Errors
    /// Fails when it is not there, cannot be read, or is larger than `most` bytes.
    pub(super) fn text(self, path: &Path, most: u64) -> io::Result<String> {
        match self {
            Self::Disk => read_text(path, most),
            Self::Posted(posted) => {
                let text = plain(path).and_then(|path| posted.files.get(&path));
                text.map(|text| text.to_string()).ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }
}

/// Returns a path without `.` and `..`; `None` if it leads out of the files.
fn plain(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(tests: &[(&str, &str)]) -> Result<Posted, PostedError> {
        let main = "local m = require(\"./sub/m\") return m";
        let files = BTreeMap::from([
            ("main.lua".to_owned(), main.into()),
            ("sub/m.lua".to_owned(), "return 1".into()),
            ("note.md".to_owned(), "x".into()),
        ]);
        let tests = tests.iter().map(|(path, text)| ((*path).to_owned(), Arc::from(*text)));
        Posted::new(Bundle::from_files(files, Some("main.lua")).unwrap(), tests.collect())
    }

    #[test]
    fn only_the_files_of_the_request_can_be_named() {
        let it = posted(&[("t/a_test.lua", "return 1"), ("t/other.lua", "return 2")]).unwrap();
        assert_eq!(it.tests(), ["t/a_test.lua"]);
        let files = Files::Posted(&it);
        let named = |path: &str| files.bundle(Path::new(path));
        assert_eq!(named("t/../main.lua").unwrap().files().len(), 3, "all of the blueprint's");
        assert_eq!(named("t/./other.lua").unwrap().entry(), "other.lua");
        assert_eq!(named("sub/m.lua").unwrap().files().len(), 1);
        for path in ["/etc/passwd", "../main.lua", "t/../../main.lua", "none.lua", "", "t"] {
            let refused = named(path).unwrap_err().message;
            assert!(refused.contains("among the files: main.lua, note.md"), "{path}: {refused}");
            assert!(files.text(Path::new(path), 10).is_err(), "{path}");
        }
        assert_eq!(files.text(Path::new("t/../note.md"), 10).unwrap(), "x");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert!(matches!(posted(&[("a.lua", "")]), Err(PostedError::NoTests)));
        let twice = posted(&[("a_test.lua", ""), ("main.lua", "")]);
        assert!(matches!(twice, Err(PostedError::Twice(_))), "{twice:?}");
        let outside = posted(&[("../a_test.lua", "")]);
        assert!(matches!(outside, Err(PostedError::Bundle(_))), "{outside:?}");
    }
}
