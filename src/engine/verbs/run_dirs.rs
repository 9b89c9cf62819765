//! The directories of runs below `work`, and those of blueprints' files below `bundles`: removed with
//! what they belong to, and searched for a text.
//!
//! A host that dies between a deletion and the removal of its directories leaves some. They are
//! removed at the next start and by `gc`: a directory goes if its run is not stored, and was created
//! since this database has the directory `work`. Older ones may belong to another database that was
//! used with it, or to runs that a restored copy does not have.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use memchr::memmem::Finder;
use tokio::sync::OwnedRwLockWriteGuard;

use crate::{
    blueprint::Bundle,
    engine::{EngineError, settings::Settings, verbs::engine::UpkeepVerbs},
    environment::{ATTEMPTS, ROOM, remove_tree, search_tree},
    protocol::{Code, RunId},
    store::{Store, StoreError},
};

/// The key of the number of a database, which no other one has.
pub(crate) const INCARNATION: &str = "incarnation";
/// The file that says which database has a directory `work`, and since when.
const OWNER: &str = ".owner";
/// The number of digits of a blueprint's hash.
const HASH: usize = 64;
/// The maximum wait for the starts that are in progress.
const PATIENCE: Duration = Duration::from_secs(10);

/// The directories of a host.
#[derive(Debug, Clone)]
pub(crate) struct RunDirs {
    work: PathBuf,
    bundles: PathBuf,
}

/// The directories that have a text.
#[derive(Debug, Default)]
pub(crate) struct TextHits {
    /// The runs with a directory that has it.
    pub(crate) runs: BTreeSet<RunId>,
    /// The number of directories of versions that are not stored any more.
    pub(crate) bundles: u64,
    /// The number of files and directories that could not be read.
    pub(crate) unread: u64,
}

/// Notes that a database has the directory `work` from now on, unless it is noted already.
pub(crate) fn claim_work(work: &Path, database: &str, now_ms: u64) -> io::Result<()> {
    if since(work, database).is_some() {
        return Ok(());
    }
    let draft = work.join(format!("{OWNER}.new"));
    let mut file = File::create(&draft)?;
    file.write_all(format!("{database} {now_ms}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, work.join(OWNER))?;
    File::open(work)?.sync_all()
}

/// Returns since when a database has the directory `work`, in Unix milliseconds.
fn since(work: &Path, database: &str) -> Option<u64> {
    let text = fs::read_to_string(work.join(OWNER)).ok()?;
    let (owner, since) = text.trim_end().split_once(' ')?;
    since.parse().ok().filter(|_| owner == database)
}

impl RunDirs {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { work: settings.work.clone(), bundles: settings.bundles() }
    }

    /// Returns the runs with a directory of their own or of an attempt.
    pub(crate) fn all_runs(&self) -> BTreeSet<RunId> {
        let of_attempts = self.attempts().into_iter().map(|(run, _)| run);
        self.runs().into_iter().chain(of_attempts).collect()
    }

    /// Returns since when the database has the directory `work`, if it does.
    pub(crate) fn since(&self, store: &dyn Store) -> Result<Option<u64>, StoreError> {
        let database = store.meta(INCARNATION)?.unwrap_or_default();
        Ok(since(&self.work, &database))
    }

    /// Removes the directories of runs, and what is left of their attempts. Returns those of which
    /// something is left. Blocks.
    pub(crate) fn remove(&self, runs: &BTreeSet<RunId>) -> BTreeSet<RunId> {
        let mut left = BTreeSet::new();
        let own = runs.iter().map(|run| (*run, self.work.join(run.to_string())));
        let attempts = self.attempts().into_iter().filter(|(run, _)| runs.contains(run));
        for (run, dir) in own.chain(attempts) {
            if let Err(error) = remove_tree(&dir) {
                tracing::warn!(%run, dir = %dir.display(), %error, "a directory of a run is left");
                left.insert(run);
            }
        }
        left
    }

    /// Removes the directories of runs that the database had and has no more. Returns those of which
    /// something is left. Blocks.
    pub(crate) fn sweep(&self, store: &dyn Store) -> Result<BTreeSet<RunId>, StoreError> {
        let Some(since_ms) = self.since(store)? else { return Ok(BTreeSet::new()) };
        // A run is stored before its directory is made, so a run of this list is stored or gone.
        let own = self.all_runs().into_iter().filter(|run| run.created_ms() >= since_ms);
        Ok(self.remove(&unstored(store, own)?))
    }

    /// Gives the directories of versions that are not stored any more another name, so that nobody
    /// uses what is left of one. Returns the renamed ones, with those that were renamed before, and
    /// the number of those that kept their name. Blocks. No run may be started meanwhile: it could
    /// have such a version.
    fn set_aside(&self, store: &dyn Store) -> (Vec<PathBuf>, u64) {
        let (mut aside, mut left) = (Vec::new(), 0);
        for dir in self.unstored_bundles(store) {
            if dir.extension().is_some() {
                aside.push(dir);
                continue;
            }
            let renamed = dir.with_extension(format!("{}.partial", uuid::Uuid::new_v4()));
            match fs::rename(&dir, &renamed) {
                Ok(()) => aside.push(renamed),
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), %error, "a blueprint's directory is left");
                    left += 1;
                }
            }
        }
        (aside, left)
    }

    /// Looks for texts in the directories of runs, of their attempts, and of versions that are not
    /// stored any more: the others are found by their rows. Blocks, until `is_over`.
    pub(crate) fn search(
        &self,
        store: &dyn Store,
        texts: &[String],
        is_over: &dyn Fn() -> bool,
    ) -> TextHits {
        let texts: Vec<Finder<'_>> = texts.iter().map(Finder::new).collect();
        let mut hits = TextHits::default();
        let own = self.runs().into_iter().map(|run| (run, self.work.join(run.to_string())));
        let rooms = self.attempts().into_iter().map(|(run, dir)| (run, dir.join(ROOM)));
        for (run, dir) in own.chain(rooms) {
            if hits.runs.contains(&run) {
                continue;
            }
            let search = search_tree(&dir, &texts, is_over);
            if search.found {
                hits.runs.insert(run);
            } else {
                hits.unread += search.unread;
            }
        }
        for dir in self.unstored_bundles(store) {
            let search = search_tree(&dir, &texts, is_over);
            hits.bundles += u64::from(search.found);
            hits.unread += search.unread;
        }
        hits
    }

    /// Returns the runs that have a directory of their own.
    fn runs(&self) -> Vec<RunId> {
        directories(&self.work).iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Returns the directories of attempts, each with its run.
    fn attempts(&self) -> Vec<(RunId, PathBuf)> {
        let root = self.work.join(ATTEMPTS);
        let of = |name: &String| {
            let (run, _) = name.split_once('-')?;
            Some((run.parse().ok()?, root.join(name)))
        };
        directories(&root).iter().filter_map(of).collect()
    }

    /// Returns the directories of versions that are not stored, and those that were set aside or not
    /// completed. A version that cannot be read is stored.
    fn unstored_bundles(&self, store: &dyn Store) -> Vec<PathBuf> {
        let names = directories(&self.bundles);
        let is_unstored = |name: &&String| {
            hash_of(name).is_some_and(|hash| {
                hash.len() < name.len() || matches!(store.blueprint(hash), Ok(None))
            })
        };
        names.iter().filter(is_unstored).map(|name| self.bundles.join(name)).collect()
    }
}

impl UpkeepVerbs<'_> {
    /// Returns the directories of this host.
    pub(crate) fn dirs(self) -> RunDirs {
        RunDirs::of(&self.engine.shared().settings)
    }

    /// Removes the directories of runs that are not stored. Returns those of which something is left.
    pub(crate) async fn forget_files(self, runs: BTreeSet<RunId>) -> BTreeSet<RunId> {
        if runs.is_empty() {
            return runs;
        }
        let (dirs, all) = (self.dirs(), runs.clone());
        let removed = self.engine.shared().tasks.spawn_blocking(move || dirs.remove(&runs));
        // A host that stops may leave them: the next one removes them at its start.
        removed.await.unwrap_or(all)
    }

    /// Removes the directories that deletions before have left. Returns the runs of which something
    /// is left.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) async fn sweep_directories(self) -> Result<BTreeSet<RunId>, EngineError> {
        let dirs = self.dirs();
        self.engine.read(move |store| dirs.sweep(store)).await
    }

    /// Removes the files of versions that are not stored any more. Returns the number of directories
    /// that are left.
    ///
    /// # Errors
    /// Fails when starts are in progress for too long, or the store cannot be read.
    pub(crate) async fn sweep_bundles(self) -> Result<u64, EngineError> {
        if !self.has_unstored_bundles().await? {
            return Ok(0);
        }
        let alone = self.alone_in_time("remove the files of blueprints").await?;
        self.remove_bundles(alone).await
    }

    /// Returns true if there are files of versions that are not stored any more.
    pub(crate) async fn has_unstored_bundles(self) -> Result<bool, EngineError> {
        let dirs = self.dirs();
        self.engine.read(move |store| Ok(!dirs.unstored_bundles(store).is_empty())).await
    }

    /// As [`Self::sweep_bundles`], for a caller that lets no run start. Runs start again once no name
    /// leads to the files, before they are removed.
    ///
    /// # Errors
    /// Fails when the host stops.
    pub(crate) async fn remove_bundles(
        self,
        alone: OwnedRwLockWriteGuard<()>,
    ) -> Result<u64, EngineError> {
        let dirs = self.dirs();
        let remove = move |store: &dyn Store| {
            let (aside, left) = dirs.set_aside(store);
            // Not before, also if the caller is gone.
            drop(alone);
            Ok(left + remove_aside(&aside))
        };
        self.engine.read(remove).await
    }

    /// Waits until no run is between its look at what is stored and its commit; none begins as long
    /// as the guard is held.
    pub(crate) async fn alone(self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.engine.shared().programs.starts).write_owned().await
    }

    /// Does the same as [`Self::alone`], but waits no longer than a request does.
    ///
    /// # Errors
    /// Fails when starts are in progress for too long.
    pub(crate) async fn alone_in_time(
        self,
        what: &str,
    ) -> Result<OwnedRwLockWriteGuard<()>, EngineError> {
        let alone = tokio::time::timeout(PATIENCE, self.alone()).await;
        alone.map_err(|_| EngineError::Busy {
            code: Code::Overloaded,
            message: format!("{what}: runs are being started"),
            retry_after_s: 5,
        })
    }
}

/// Returns true if a run is stored: this one, and not another one with its number.
pub(crate) fn is_stored(store: &dyn Store, run: RunId) -> Result<bool, StoreError> {
    Ok(store.header(run.num())?.is_some_and(|header| header.id() == run))
}

/// Returns those of some runs that are not stored.
pub(crate) fn unstored(
    store: &dyn Store,
    runs: impl IntoIterator<Item = RunId>,
) -> Result<BTreeSet<RunId>, StoreError> {
    let mut unstored = BTreeSet::new();
    for run in runs {
        if !is_stored(store, run)? {
            unstored.insert(run);
        }
    }
    Ok(unstored)
}

/// Removes directories of blueprints that were set aside. Returns the number of those that are
/// left. Blocks.
fn remove_aside(aside: &[PathBuf]) -> u64 {
    let mut left = 0;
    for dir in aside {
        if let Err(error) = remove_tree(dir) {
            tracing::warn!(dir = %dir.display(), %error, "a blueprint's directory is left");
            left += 1;
        }
    }
    left
}

/// Returns the names of the directories in a directory, without links to some.
fn directories(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let names = entries.flatten().filter(is_directory);
    names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the hash that the name of a directory is for: of a version, of one that was set aside, or
/// of one that a host which died was writing.
fn hash_of(name: &str) -> Option<&str> {
    let (hash, _) = name.split_once('.').unwrap_or((name, ""));
    let is_hash = hash.len() == HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && !Bundle::is_being_written(name)).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the database of these tests.
    const DATABASE: &str = "7";

    fn dirs(root: &Path) -> RunDirs {
        let dirs = RunDirs { work: root.join("work"), bundles: root.join("bundles") };
        fs::create_dir_all(&dirs.work).unwrap();
        fs::create_dir_all(&dirs.bundles).unwrap();
        dirs
    }

    #[test]
    fn the_directory_of_a_run_that_is_not_stored_is_its_databases_since_it_has_work() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        claim_work(&dirs.work, DATABASE, 1_000).unwrap();
        claim_work(&dirs.work, DATABASE, 2_000).unwrap();
        assert_eq!(since(&dirs.work, DATABASE), Some(1_000), "it had it already");
        assert_eq!(since(&dirs.work, "8"), None);
        claim_work(&dirs.work, "8", 3_000).unwrap();
        assert_eq!((since(&dirs.work, DATABASE), since(&dirs.work, "8")), (None, Some(3_000)));
        fs::write(dirs.work.join(OWNER), "x").unwrap();
        assert_eq!(since(&dirs.work, "8"), None);
    }

    #[test]
    fn only_directories_with_the_id_of_a_run_are_looked_at_and_no_links() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let (run, linked) = (RunId::new(1, 1_000), RunId::new(2, 1_000));
        for name in [run.to_string(), "run_x".to_owned(), "mine".to_owned()] {
            fs::create_dir(dirs.work.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root.path(), dirs.work.join(linked.to_string())).unwrap();
        fs::write(dirs.work.join(RunId::new(3, 1_000).to_string()), "a file").unwrap();
        let attempt = dirs.work.join(ATTEMPTS).join(format!("{linked}-4-1"));
        fs::create_dir_all(attempt.join(ROOM)).unwrap();
        assert_eq!(dirs.runs(), [run]);
        assert_eq!(dirs.attempts(), [(linked, attempt.clone())]);
        let both = BTreeSet::from([run, linked]);
        assert_eq!(dirs.remove(&both), BTreeSet::new());
        assert!(
            !dirs.all_runs().contains(&run)
                && !dirs.all_runs().contains(&linked)
                && !attempt.exists()
        );
        assert!(dirs.bundles.is_dir() && dirs.work.join("mine").is_dir());
    }

    #[test]
    fn a_bundle_is_known_by_its_hash() {
        let hash = "0a".repeat(32);
        assert_eq!(hash_of(&hash), Some(&*hash));
        assert_eq!(hash_of(&format!("{hash}.0-1.partial")), Some(&*hash));
        // One of an earlier process with the same id.
        let same = format!("{hash}.{}-1.partial", std::process::id());
        assert_eq!(hash_of(&same), Some(&*hash));
        for other in ["", "x", &hash[1..], &"x".repeat(64)] {
            assert_eq!(hash_of(other), None, "{other}");
        }
    }
}
