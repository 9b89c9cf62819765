//! The identity of a store's files, to detect that they were moved or replaced.

use std::{
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::store::StoreError;

/// The location at which a store was opened.
pub struct StorePath {
    dir: PathBuf,
    files: Vec<(PathBuf, Id)>,
}

/// The device and inode number of a file.
type Id = (u64, u64);

impl StorePath {
    /// Records the current files of `dir` with these names. Missing files are skipped.
    pub fn of(dir: &Path, names: &[&str]) -> Self {
        // The working directory may change later.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let paths = names.iter().map(|name| dir.join(name));
        let files = paths.filter_map(|path| Some((identity(&path)??, path)));
        let files = files.map(|(id, path)| (path, id)).collect();
        Self { dir, files }
    }

    /// Checks that each file is still at its path.
    ///
    /// # Errors
    /// Returns [`StoreError::Gone`]. A file that cannot be examined for another reason counts as
    /// present.
    pub fn check(&self) -> Result<(), StoreError> {
        let is_there = |(path, id): &(PathBuf, Id)| match identity(path) {
            Some(found) => found == Some(*id),
            None => true,
        };
        match self.files.iter().find(|it| !is_there(it)) {
            None => Ok(()),
            Some((path, _)) => Err(StoreError::Gone {
                path: self.dir.display().to_string(),
                file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            }),
        }
    }
}

/// Returns the identity of a file; `Some(None)` if it does not exist, `None` if that is unknown.
fn identity(path: &Path) -> Option<Option<Id>> {
    match std::fs::metadata(path) {
        Ok(meta) => Some(Some((meta.dev(), meta.ino()))),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::StaleNetworkFileHandle => {
                Some(None)
            }
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_removed_replaced_or_moved_away_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("lock"), "").unwrap();
        let place = StorePath::of(&dir, &["lock", "none"]);
        place.check().unwrap();

        fs::rename(dir.join("lock"), dir.join("kept")).unwrap();
        let error = place.check().unwrap_err();
        assert!(matches!(&error, StoreError::Gone { file, .. } if file == "lock"), "{error}");
        fs::write(dir.join("lock"), "").unwrap();
        place.check().unwrap_err();
        fs::rename(dir.join("kept"), dir.join("lock")).unwrap();
        place.check().unwrap();

        fs::rename(&dir, root.path().join("elsewhere")).unwrap();
        place.check().unwrap_err();
    }
}
