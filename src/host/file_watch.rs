//! The files that blueprints watch: scans them, and reports them to the engine once they are
//! stable.
//!
//! The system notifies of changes. In addition, every watch is scanned every few seconds, for
//! directories without notifications and for blueprint names that have moved. A link to a file
//! counts as that file if the target is within the watched directory; no other link is followed, so
//! that nothing outside is visible.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    blueprint::FileWatch,
    clock::Clock,
    engine::{Engine, FileMark, Files, Schedules, Watched},
    tasks::Tasks,
};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The maximum number of files of one watch.
const MOST_FILES: usize = 10_000;
/// The maximum number of files and directories scanned for one watch.
const MOST_ENTRIES: usize = 100_000;
/// The maximum depth of a watch.
const DEEPEST: usize = 32;
/// The maximum delay between two scans, in milliseconds.
const REST_MS: u64 = 10_000;
/// The minimum delay before a scan: changes seldom come alone.
const BREATH: Duration = Duration::from_millis(50);
/// Files that keep changing are reported after this many times their settle time.
const PATIENCE: u64 = 10;

/// Scans until the host stops. Changes in the data directory are the host's own, but for those in a
/// watched directory that is in it.
pub(super) fn start(engine: &Engine, tasks: &Tasks, data: &Path, roots: BTreeMap<String, PathBuf>) {
    let own = [std::path::absolute(data), data.canonicalize()].into_iter().flatten().collect();
    engine.triggers().watch_files(roots);
    let again = engine.triggers().names_moved();
    let mut eye = Eye {
        engine: engine.clone(),
        tasks: tasks.clone(),
        again: Arc::clone(&again),
        own,
        within: Arc::default(),
        watcher: None,
        told_of: HashSet::new(),
        known: Schedules::default(),
        looks: HashMap::new(),
    };
    let stopping = tasks.stopping().clone();
    tasks.spawn(async move {
        let clock = Clock::system();
        loop {
            let began = clock.steady_ms();
            let next = eye.look(&clock).await;
            // After a notification the pause is at least twice as long as the last scan.
            let took = Duration::from_millis(clock.steady_ms().saturating_sub(began));
            let breath = BREATH.max(took * 2);
            tokio::select! {
                () = stopping.cancelled() => return,
                () = clock.sleep_until(next) => {}
                () = again.notified() => tokio::time::sleep(breath).await,
            }
        }
    });
}

/// The state of all watches.
struct Eye {
    engine: Engine,
    tasks: Tasks,
    /// Notified when something changed.
    again: Arc<Notify>,
    /// The paths of the data directory.
    own: Vec<PathBuf>,
    /// The directories in it with notifications.
    within: Arc<Mutex<Vec<PathBuf>>>,
    /// Created for the first watch; most hosts have none.
    watcher: Option<notify::Result<RecommendedWatcher>>,
    /// The directories with notifications, with their inodes: a directory that was recreated is
    /// another one.
    told_of: HashSet<(PathBuf, u64, bool)>,
    known: Schedules,
    looks: HashMap<String, Look>,
}

impl Eye {
    /// Scans every watch once; returns the time of the next scan.
    async fn look(&mut self, clock: &Clock) -> u64 {
        let mut next = clock.now_ms() + REST_MS;
        let watches = match self.engine.triggers().file_watches(&mut self.known).await {
            Ok(watches) => watches,
            Err(error) => {
                tracing::warn!(%error, "could not look for file watches");
                return next;
            }
        };
        self.looks.retain(|id, _| watches.iter().any(|watched| watched.id() == *id));
        self.follow(&watches);
        for watched in watches {
            let scanned = {
                let watched = watched.clone();
                let scan = self.tasks.spawn_blocking(move || scan(&watched.dir, &watched.watch));
                scan.await
            };
            // The task fails only when the host stops.
            let Ok(scanned) = scanned else { return next };
            let (files, problem) = match scanned {
                Ok(Scanned { files, problem }) => (Some(files), problem),
                Err(problem) => (None, Some(problem)),
            };
            if self.engine.triggers().note_watch(&watched, problem.clone())
                && let Some(problem) = problem
            {
                tracing::warn!(blueprint = watched.name, watch = watched.watch.pattern(), problem);
            }
            if let Some(files) = files {
                next = next.min(self.tell(&watched, files, clock).await.unwrap_or(next));
            }
        }
        next
    }

    /// Reports the files to the engine if they are stable; otherwise returns the time at which they
    /// may be.
    async fn tell(&mut self, watched: &Watched, files: Files, clock: &Clock) -> Option<u64> {
        let now = clock.now_ms();
        let look = self.looks.entry(watched.id()).or_default();
        if let Some(due) = look.due(&files, now, watched.watch.settle_ms())
            && now < due
        {
            return Some(due);
        } else if look.told.as_ref() == Some(&files) {
            return None;
        }
        match self.engine.triggers().saw_files(watched, &files, look.told.is_none()).await {
            Ok(None) => {
                look.told = Some(files);
                None
            }
            Ok(again) => again,
            Err(error) => {
                tracing::warn!(blueprint = watched.name, %error, "could not take changed files in");
                None
            }
        }
    }

    /// Subscribes to the directories of these watches, and to no others.
    fn follow(&mut self, watches: &[Watched]) {
        if watches.is_empty() && self.told_of.is_empty() {
            return;
        }
        let make = || watcher(&self.again, self.own.clone(), &self.within);
        let Ok(watcher) = self.watcher.get_or_insert_with(make) else { return };
        let wanted: HashSet<_> =
            watches.iter().filter_map(|it| place(&it.dir, &it.watch)).collect();
        for (dir, ..) in self.told_of.difference(&wanted) {
            // A directory that was removed has no notifications anyway.
            let _ = watcher.unwatch(dir);
        }
        for place @ (dir, _, below) in wanted.difference(&self.told_of) {
            let mode = if *below { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if let Err(error) = watcher.watch(dir, mode) {
                let (dir, seconds) = (dir.display(), REST_MS / 1_000);
                tracing::warn!(%dir, %error, place = place.1, "looked at every {seconds} seconds only");
            }
        }
        let places = wanted.iter().filter_map(|(dir, ..)| std::path::absolute(dir).ok());
        *self.within.lock() = places.filter(|dir| is_below(dir, &self.own)).collect();
        self.told_of = wanted;
    }
}

fn is_below(path: &Path, dirs: &[PathBuf]) -> bool {
    dirs.iter().any(|dir| path.starts_with(dir))
}

/// Creates the watcher that notifies `again` of changes. The `own` directories change all the time,
/// and only what is `within` some others there matters.
fn watcher(
    again: &Arc<Notify>,
    own: Vec<PathBuf>,
    within: &Arc<Mutex<Vec<PathBuf>>>,
) -> notify::Result<RecommendedWatcher> {
    let (changed, within) = (Arc::clone(again), Arc::clone(within));
    let told = move |event: notify::Result<notify::Event>| {
        let is_own = |path: &PathBuf| is_below(path, &own) && !is_below(path, &within.lock());
        let matters = |event: notify::Event| {
            !event.kind.is_access() && (event.paths.is_empty() || !event.paths.iter().all(is_own))
        };
        if event.is_ok_and(matters) {
            changed.notify_one();
        }
    };
    // A link leads out of the directory, and nothing behind it counts.
    let within = notify::Config::default().with_follow_symlinks(false);
    let made = RecommendedWatcher::new(told, within);
    if let Err(error) = &made {
        tracing::warn!(%error, "watched files are looked at every few seconds only");
    }
    made
}

/// The state of one watch.
#[derive(Default)]
struct Look {
    /// The files that were reported last.
    told: Option<Files>,
    /// The files that exist now, if they were not reported yet.
    seen: Option<Files>,
    first_ms: u64,
    last_ms: u64,
}

impl Look {
    /// Returns the time at which the current files may be reported; `None` if they were reported,
    /// or on the first scan.
    fn due(&mut self, files: &Files, now: u64, settle_ms: u64) -> Option<u64> {
        let told = self.told.as_ref()?;
        if told == files {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(files) {
            if self.seen.is_none() {
                self.first_ms = now;
            }
            self.last_ms = now;
            self.seen = Some(files.clone());
        }
        Some((self.last_ms + settle_ms).min(self.first_ms + settle_ms * PATIENCE))
    }
}

/// Returns the deepest existing directory that contains everything the watch matches: its path, its
/// inode, and whether the directories below it matter.
fn place(dir: &Path, watch: &FileWatch) -> Option<(PathBuf, u64, bool)> {
    let (mut at, mut parts) = (dir.to_owned(), 0);
    let base: Vec<_> = watch.base().split('/').filter(|part| !part.is_empty()).collect();
    for part in &base {
        let deeper = at.join(part);
        if !is_dir(&deeper) {
            break;
        }
        at = deeper;
        parts += 1;
    }
    let whole = parts == base.len();
    let below = whole && watch.depth().is_none_or(|depth| depth > parts + 1);
    let inode = fs::metadata(&at).ok()?.ino();
    Some((at, inode, below))
}

/// Returns true if the path is a directory, and not a link to one.
fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// The result of a scan.
struct Scanned {
    /// The files that the watch matches.
    files: Files,
    /// A problem to report in addition to the files.
    problem: Option<String>,
}

/// Returns the files below a directory that match a watch.
fn scan(dir: &Path, watch: &FileWatch) -> Result<Scanned, String> {
    // A missing root, such as a disk that is not mounted, does not mean that its files were
    // removed.
    let root = fs::canonicalize(dir).ok().filter(|root| root.is_dir());
    let root = root.ok_or_else(|| format!("{} is no directory", dir.display()))?;
    let mut scan = Scan { watch, root, files: Files::new(), entries: 0, outside: None };
    let mut at = dir.to_owned();
    for part in watch.base().split('/').filter(|part| !part.is_empty()) {
        at.push(part);
        if !is_dir(&at) {
            let path = at.strip_prefix(dir).unwrap_or(&at).display().to_string();
            scan.behind(&at, &path);
            return Ok(scan.done());
        }
    }
    scan.walk(&at, watch.base())?;
    Ok(scan.done())
}

struct Scan<'a> {
    watch: &'a FileWatch,
    /// The watched directory, with links resolved.
    root: PathBuf,
    files: Files,
    entries: usize,
    /// The first link that leads out of the directory, to what would match or have files that do.
    outside: Option<String>,
}

impl Scan<'_> {
    fn walk(&mut self, dir: &Path, path: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{} cannot be read: {error}", dir.display());
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(format!("there are more than {MOST_ENTRIES} files to look at"));
            }
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if meta.is_dir() && self.goes_into(&below) {
                self.walk(&entry.path(), &below)?;
                continue;
            } else if !self.watch.matches(&below) {
                if meta.is_symlink() && self.goes_into(&below) && entry.path().is_dir() {
                    self.behind(&entry.path(), &below);
                }
                continue;
            }
            let meta = match meta.is_symlink() {
                true => self.behind(&entry.path(), &below),
                false => Some(meta),
            };
            if let Some(meta) = meta.filter(fs::Metadata::is_file) {
                if self.files.len() >= MOST_FILES {
                    return Err(format!("it means more than {MOST_FILES} files"));
                }
                self.files.insert(below, mark(&meta));
            }
        }
        Ok(())
    }

    /// Returns the metadata of a link's target, if that is in the watched directory. Notes a link
    /// that leads out of it.
    fn behind(&mut self, link: &Path, path: &str) -> Option<fs::Metadata> {
        // A dangling link is not a file.
        let target = fs::canonicalize(link).ok()?;
        if !target.starts_with(&self.root) {
            self.outside.get_or_insert_with(|| path.to_owned());
            return None;
        }
        fs::symlink_metadata(target).ok()
    }

    fn done(self) -> Scanned {
        let problem = self.outside.map(|path| {
            format!("{path} is a link out of the directory, and does not count: put the file there")
        });
        Scanned { files: self.files, problem }
    }

    fn goes_into(&self, path: &str) -> bool {
        let depth = path.split('/').count();
        let name = path.rsplit('/').next().unwrap_or(path);
        let hidden = name.starts_with('.') && !self.watch.pattern().contains("/.");
        depth < self.watch.depth().unwrap_or(DEEPEST).min(DEEPEST) && !hidden
    }
}

fn mark(meta: &fs::Metadata) -> FileMark {
    let seconds = u64::try_from(meta.mtime()).unwrap_or(0);
    let rest = u64::try_from(meta.mtime_nsec()).unwrap_or(0);
    FileMark {
        size: meta.len(),
        written_ns: seconds.saturating_mul(1_000_000_000).saturating_add(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path, pattern: &str) -> Result<Vec<String>, String> {
        let watch = FileWatch::parse(pattern, None).unwrap();
        scan(dir, &watch).map(|seen| seen.files.into_keys().collect())
    }

    #[test]
    fn what_a_pattern_means_is_found_and_no_link_leads_out() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret.json"), "x").unwrap();
        for name in ["inbox/a.json", "inbox/in/b.json", "inbox/.c.json", "d.json"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let link = |from: &str| {
            std::os::unix::fs::symlink(outside.path(), dir.path().join(from)).unwrap();
        };
        link("out");
        link("inbox/out");
        let secret = outside.path().join("secret.json");
        std::os::unix::fs::symlink(secret, dir.path().join("inbox/e.json")).unwrap();
        let found = |pattern| names(dir.path(), pattern).unwrap();
        assert_eq!(found("inbox/*.json"), ["inbox/a.json"]);
        assert_eq!(found("**/*.json"), ["d.json", "inbox/a.json", "inbox/in/b.json"]);
        assert!(found("out/*.json").is_empty());
        assert!(found("none/*.json").is_empty());
        let gone = names(&dir.path().join("gone"), "*").unwrap_err();
        assert!(gone.contains("is no directory"), "{gone}");
    }

    #[test]
    fn a_link_to_a_file_of_the_directory_is_that_file_and_one_that_leads_out_is_named() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret.json"), "x").unwrap();
        fs::create_dir(dir.path().join("..data")).unwrap();
        fs::write(dir.path().join("..data/a.json"), "four").unwrap();
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        };
        link(Path::new("..data/a.json"), "a.json");
        link(Path::new("gone.json"), "broken.json");
        link(Path::new("round.json"), "round.json");
        link(Path::new("..data"), "b.json");
        // The directory itself may be reached over a link.
        let root = outside.path().join("root");
        std::os::unix::fs::symlink(dir.path(), &root).unwrap();
        let watch = FileWatch::parse("*.json", None).unwrap();
        let seen = scan(&root, &watch).unwrap();
        assert_eq!(seen.files.keys().collect::<Vec<_>>(), ["a.json"]);
        assert_eq!((seen.files["a.json"].size, seen.problem), (4, None));
        link(&outside.path().join("secret.json"), "c.json");
        let seen = scan(&root, &watch).unwrap();
        assert_eq!(seen.files.keys().collect::<Vec<_>>(), ["a.json"]);
        assert!(seen.problem.unwrap().starts_with("c.json is a link out of"));
    }

    #[test]
    fn a_link_to_a_directory_outside_is_named_where_files_below_it_would_count() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("a.json"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        let cases =
            [("out/*.json", true), ("**/*.json", true), ("*.json", false), ("in/*.json", false)];
        for (pattern, is_named) in cases {
            let seen = scan(dir.path(), &FileWatch::parse(pattern, None).unwrap()).unwrap();
            assert!(seen.files.is_empty(), "{pattern}");
            let is_told = seen.problem.is_some_and(|it| it.starts_with("out is a link out of"));
            assert_eq!(is_told, is_named, "{pattern}");
        }
    }

    #[test]
    fn more_files_than_a_watch_may_have_are_a_problem_and_no_change() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..=MOST_FILES {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        assert!(names(dir.path(), "*").unwrap_err().contains("10000"));
        assert_eq!(names(dir.path(), "12*").unwrap().len(), 111);
    }

    #[test]
    fn files_are_told_once_they_rest_and_at_last_also_if_they_never_do() {
        let files = |size| Files::from([("a".to_owned(), FileMark { size, written_ns: 0 })]);
        let mut look = Look::default();
        assert_eq!(look.due(&files(1), 0, 100), None, "the first look is told at once");
        look.told = Some(files(1));
        assert_eq!(look.due(&files(1), 10, 100), None);
        assert_eq!(look.due(&files(2), 20, 100), Some(120));
        assert_eq!(look.due(&files(3), 90, 100), Some(190));
        assert_eq!(look.due(&files(3), 190, 100), Some(190));
        for n in 4..30 {
            look.due(&files(n), 60 * n, 100);
        }
        assert_eq!(look.due(&files(99), 1_500, 100), Some(1_020));
        assert_eq!(look.due(&files(1), 1_600, 100), None, "as it was told: nothing changed");
    }
}
