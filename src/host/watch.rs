//! The watched directory: each blueprint in it stands under its own name.
//!
//! `NAME.lua`, `NAME.luau`, `NAME.flow.json` and `NAME/main.lua` are blueprints. A file that does not
//! compile leaves the last good version in place; it is listed with its finding, and the log says so,
//! once for each change. Of two files with one name the second is refused. The name of a file that is
//! gone is archived: no run of it starts any more, and what there is of it stays.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::HostError;
use crate::{
    blueprint::{Bundle, BundleError, Finding, MAX_FILE_BYTES, read_regular},
    engine::{BlueprintProblem, Engine, EngineError},
    tasks::Tasks,
};

/// The length of a hash in messages.
const SHORT: usize = 12;

/// The names of the main file of a directory that is one blueprint.
const MAIN: [&str; 2] = ["main.lua", "main.luau"];
/// The time without changes before a directory is read again.
const QUIET: Duration = Duration::from_millis(200);
/// The maximum time between two looks: no system notifies of everything.
const REST: Duration = Duration::from_secs(10);
/// The share of the time that looks without a change take at most: one part in so many.
const SHARE: u32 = 20;
/// The time after which a directory that could not be read is looked for again.
const LOST: Duration = Duration::from_secs(1);

/// Directories below the watched one that are watched as well, and how deep they may be.
const MOST_DIRS: usize = 2_000;
const DEEPEST: usize = 8;
/// The key under which the files of names are stored, for the next start.
const WATCHED: &str = "watched_blueprints";

/// Keeps watching while it lives.
pub(super) struct Watch {
    _stop: oneshot::Sender<()>,
}

impl Watch {
    /// Reads `dir` now, and again whenever something in it changes. The data directory may lie in
    /// it, and changes all the time.
    pub(super) async fn start(
        dir: &Path,
        data: &Path,
        engine: Engine,
        tasks: &Tasks,
    ) -> Result<Self, HostError> {
        let fault = |reason: String| HostError::File {
            what: "watch",
            path: dir.display().to_string(),
            reason,
        };
        let root = std::path::absolute(dir).map_err(|error| fault(error.to_string()))?;
        let (changed, mut changes) = mpsc::channel(1);
        let told = move |event: notify::Result<notify::Event>| {
            let matters = |event: &notify::Event| {
                // Without a path, events were lost.
                let is_theirs = |path: &PathBuf| !is_hidden(path);
                !event.kind.is_access()
                    && (event.paths.is_empty() || event.paths.iter().any(is_theirs))
            };
            if event.is_ok_and(|event| matters(&event)) {
                // One change that waits stands for all.
                let _ = changed.try_send(());
            }
        };
        let mut watcher =
            notify::recommended_watcher(told).map_err(|error| fault(error.to_string()))?;
        watcher
            .watch(&root, RecursiveMode::NonRecursive)
            .map_err(|error| fault(error.to_string()))?;
        let watched = HashSet::from([root.clone()]);
        let kept = WatchedNames::read(&engine, &root).await;
        let mut folder = Folder {
            own: place_within(data, &root),
            dir: root,
            engine,
            tasks: tasks.clone(),
            watcher,
            watched,
            is_lost: false,
            files: BTreeMap::new(),
            kept,
        };
        folder.look().await;
        let stopping = tasks.stopping().clone();
        let (stop, mut stopped) = oneshot::channel::<()>();
        tasks.spawn(async move {
            let mut took = Duration::ZERO;
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    _ = &mut stopped => return,
                    change = changes.recv() => match change {
                        Some(()) => tokio::time::sleep(QUIET).await,
                        None => return,
                    },
                    () = tokio::time::sleep(rest(folder.is_lost, took)) => {}
                }
                while changes.try_recv().is_ok() {}
                let began = tokio::time::Instant::now();
                folder.look().await;
                took = began.elapsed();
            }
        });
        Ok(Self { _stop: stop })
    }
}

/// Returns the time without changes after which a directory is read again, if that took so long.
fn rest(is_lost: bool, took: Duration) -> Duration {
    match is_lost {
        true => LOST,
        false => REST.max(took.saturating_mul(SHARE)),
    }
}

/// The device and the inode of a directory: another one may have its path.
type Identity = (u64, u64);

/// Which names came from files of which directory, with the version that each stood for.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct WatchedNames {
    dir: PathBuf,
    /// The directory that had the path at the last look.
    #[serde(default)]
    identity: Option<Identity>,
    names: BTreeMap<String, Origin>,
}

/// The origin of a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Origin {
    /// The file, relative to the directory.
    file: PathBuf,
    /// The version that it served.
    hash: String,
}

impl WatchedNames {
    /// Reads the stored state of a directory; empty if another one was watched before.
    async fn read(engine: &Engine, dir: &Path) -> Self {
        let text = engine.blueprints().meta(WATCHED).await.ok().flatten();
        let kept = text.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        let fresh = || Self { dir: dir.to_owned(), ..Self::default() };
        kept.filter(|kept| kept.dir == dir).unwrap_or_else(fresh)
    }
}

/// The last outcome of a file.
struct Seen {
    /// Its bundle's hash, or why there is none.
    mark: Result<String, String>,
    /// The name and the version that it serves.
    serves: Option<(String, String)>,
    problem: Option<BlueprintProblem>,
}

/// The watched directory, and what is known of it.
struct Folder {
    dir: PathBuf,
    /// The data directory, if it is in this one.
    own: Option<PathBuf>,
    engine: Engine,
    tasks: Tasks,
    watcher: RecommendedWatcher,
    /// The directories that are watched.
    watched: HashSet<PathBuf>,
    /// True while the directory cannot be read.
    is_lost: bool,
    files: BTreeMap<PathBuf, Seen>,
    kept: WatchedNames,
}

impl Folder {
    /// Takes over what is new or other than it was, and archives what is gone.
    async fn look(&mut self) {
        if !self.follow().await {
            return;
        }
        let (within, before) = (self.dir.clone(), self.kept.identity);
        let before = before.filter(|_| !self.kept.names.is_empty());
        // A disk may be slow: the threads of the runtime do not wait for it.
        let look = self.tasks.spawn_blocking(move || {
            let Listed { files, refused, identity } = list(&within)?;
            let is_empty = files.is_empty() && refused.is_empty();
            if is_empty && before.is_some_and(|before| before != identity) {
                return Err(io::Error::other("it is empty, and not the directory that it was"));
            }
            let load = |path: PathBuf| (Bundle::load(&path), path);
            Ok((files.into_iter().map(load).collect::<Vec<_>>(), refused, identity))
        });
        // Only a host that stops does not look.
        let Ok(looked) = look.await else { return };
        let (mut bundles, refused, identity) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                // A disk that is not mounted leaves no directory, or the empty one where it is
                // mounted. Neither means that the files were removed.
                if !std::mem::replace(&mut self.is_lost, true) {
                    let dir = self.dir.display();
                    tracing::warn!(%dir, %error, "not read: its blueprints stay as they are");
                }
                return;
            }
        };
        self.is_lost = false;
        self.files
            .retain(|path, _| bundles.iter().any(|(_, it)| it == path) || refused.contains(path));
        for path in refused {
            self.refuse(path);
        }
        // Of two files with one name, the one that is served stays so.
        let served: HashSet<String> = self
            .engine
            .blueprints()
            .named_versions()
            .await
            .unwrap_or_default()
            .into_values()
            .collect();
        bundles.sort_by_cached_key(|(bundle, path)| {
            let is_served = bundle.as_ref().is_ok_and(|bundle| served.contains(bundle.hash()));
            (!is_served, path.clone())
        });
        for (bundle, path) in bundles {
            self.take(bundle, path).await;
        }
        self.archive(identity).await;
        let problems = self.files.values().filter_map(|seen| seen.problem.clone());
        self.engine.blueprints().set_blueprint_problems(problems.collect());
    }

    /// Watches the directories that are there now, and no others, until nothing new appears: what
    /// is read afterwards does not change unnoticed. Known ones are watched again, because another
    /// one may have their path. Returns false if the host stops.
    async fn follow(&mut self) -> bool {
        let before = std::mem::take(&mut self.watched);
        for round in 0..=DEEPEST {
            let (within, own) = (self.dir.clone(), self.own.clone());
            let look = self.tasks.spawn_blocking(move || directories(&within, own.as_deref()));
            let Ok(dirs) = look.await else { return false };
            if round == 0 {
                for gone in before.difference(&dirs) {
                    // One that is gone is not told of any more.
                    let _ = self.watcher.unwatch(gone);
                }
            }
            let new: Vec<_> = dirs.difference(&self.watched).cloned().collect();
            if new.is_empty() {
                break;
            }
            for dir in new {
                if let Err(error) = self.watcher.watch(&dir, RecursiveMode::NonRecursive)
                    && !before.contains(&dir)
                {
                    tracing::warn!(dir = %dir.display(), %error, "changes in it are noticed late");
                }
                self.watched.insert(dir);
            }
        }
        true
    }

    /// Notes what is called like a blueprint and is not read.
    fn refuse(&mut self, path: PathBuf) {
        let reason = "it is a link out of the directory, or no regular file: it is left out";
        if !self.files.contains_key(&path) {
            tracing::warn!(file = %path.display(), reason);
        }
        let problem = Some(self.problem(&path, None, reason.to_owned(), Vec::new()));
        self.files.insert(path, Seen { mark: Err(reason.to_owned()), serves: None, problem });
    }

    async fn take(&mut self, bundle: Result<Bundle, BundleError>, path: PathBuf) {
        let mark = match &bundle {
            Ok(bundle) => Ok(bundle.hash().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let before = self.files.get(&path);
        // A file whose name another one had may have it now.
        let is_known =
            before.is_some_and(|it| it.mark == mark && (it.serves.is_some() || !it.is_twin()));
        if is_known {
            return;
        }
        let serves = before.and_then(|it| it.serves.clone());
        let was_twin = before.is_some_and(Seen::is_twin);
        let compiled = match bundle {
            Ok(bundle) => self.engine.blueprints().compiled_file(bundle).await,
            Err(error) => {
                let reason = error.to_string();
                tracing::warn!(file = %path.display(), reason, "left out");
                let name = serves.as_ref().map(|(name, _)| name.clone());
                let problem = Some(self.problem(&path, name, reason, Vec::new()));
                self.files.insert(path, Seen { mark, serves, problem });
                return;
            }
        };
        let seen = match compiled {
            Ok(program) => {
                let name = program.blueprint().name().to_owned();
                if let Some(other) = self.owner(&name, &path) {
                    let reason = format!("{} declares the name `{name}` already", other.display());
                    if !was_twin {
                        tracing::warn!(file = %path.display(), reason, "not served");
                    }
                    let problem = self.problem(&path, Some(name), reason, Vec::new());
                    Seen { mark, serves: None, problem: Some(problem) }
                } else if let Err(error) = self.engine.blueprints().refuse_archived(&name) {
                    // It is looked at again each time: it may have been restored.
                    let problem = self.problem(&path, Some(name), error.to_string(), Vec::new());
                    let mark = Err("archived".to_owned());
                    Seen { mark, serves: None, problem: Some(problem) }
                } else if let Err(error) = self.engine.blueprints().adopt_program(&program).await {
                    tracing::warn!(file = %path.display(), %error, "could not store a blueprint");
                    // The next change of any file tries again.
                    return;
                } else {
                    let hash = program.blueprint().hash().to_owned();
                    let version = &hash[..SHORT.min(hash.len())];
                    tracing::info!(name, version, "blueprint");
                    let home = path.parent().unwrap_or(&self.dir);
                    self.engine.triggers().set_home(&name, &hash, home.to_owned());
                    Seen { mark, serves: Some((name, hash)), problem: None }
                }
            }
            Err(EngineError::Findings(findings)) => {
                let errors: Vec<Finding> = findings.into_iter().filter(Finding::is_error).collect();
                let outcome = match serves {
                    Some(_) => "left the last good version in place",
                    None => "not served: it has errors",
                };
                for finding in &errors {
                    tracing::warn!(%finding, "{outcome}");
                }
                let name = serves.as_ref().map(|(name, _)| name.clone());
                let message = errors.first().map(ToString::to_string).unwrap_or_default();
                let problem = Some(self.problem(&path, name, message, errors));
                Seen { mark, serves, problem }
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "could not read a blueprint");
                return;
            }
        };
        self.files.insert(path, seen);
    }

    /// The other file that serves a name.
    fn owner(&self, name: &str, path: &Path) -> Option<PathBuf> {
        let serves = |seen: &Seen| seen.serves.as_ref().is_some_and(|(it, _)| it == name);
        let other = self.files.iter().find(|(other, seen)| *other != path && serves(seen));
        other.map(|(other, _)| self.relative(other))
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.dir).unwrap_or(path).to_owned()
    }

    fn problem(
        &self,
        path: &Path,
        name: Option<String>,
        message: String,
        findings: Vec<Finding>,
    ) -> BlueprintProblem {
        let file = self.relative(path);
        let before = self.kept.names.iter().find(|(_, origin)| origin.file == file);
        let name = name.or_else(|| before.map(|(name, _)| name.clone()));
        let (name, file) = (name.unwrap_or_else(|| called(path)), file.display().to_string());
        BlueprintProblem { file, name, message, findings }
    }

    /// Archives the names whose files are gone, and keeps which names came from files.
    async fn archive(&mut self, identity: Identity) {
        let served = self.files.iter().filter_map(|(path, seen)| {
            let (name, hash) = seen.serves.clone()?;
            Some((name, Origin { file: self.relative(path), hash }))
        });
        let mut names: BTreeMap<String, Origin> = served.collect();
        for (name, origin) in &self.kept.names {
            if names.contains_key(name) {
                continue;
            }
            // What a file that does not compile now served before a restart, it still does.
            let seen = self.files.get(&self.dir.join(&origin.file));
            if seen.is_some_and(|seen| seen.serves.is_none() && seen.problem.is_some()) {
                names.insert(name.clone(), origin.clone());
                continue;
            }
            match self.engine.blueprints().archive_blueprint(name, &origin.hash).await {
                Ok(()) => tracing::info!(name, "its file is gone: the name is archived"),
                Err(error) => {
                    tracing::warn!(name, %error, "could not archive a blueprint");
                    names.insert(name.clone(), origin.clone());
                }
            }
        }
        let now = WatchedNames { dir: self.dir.clone(), identity: Some(identity), names };
        if now != self.kept {
            let text = serde_json::to_string(&now).expect("names are plain data");
            if let Err(error) = self.engine.safe_mode().put_meta(WATCHED, &text).await {
                tracing::warn!(%error, "could not keep which names came from files");
            }
            self.kept = now;
        }
    }
}

impl Seen {
    /// Returns true if it is left out for its name alone.
    fn is_twin(&self) -> bool {
        self.serves.is_none()
            && self.mark.is_ok()
            && self.problem.as_ref().is_some_and(|it| it.findings.is_empty())
    }
}

/// Returns the name of a file that never compiled: its own, or its directory's.
fn called(path: &Path) -> String {
    let is_main = path.file_name().is_some_and(|name| MAIN.iter().any(|main| *main == name));
    let named = if is_main { path.parent().and_then(Path::file_name) } else { path.file_name() };
    let name = named.unwrap_or_default().to_string_lossy();
    match is_main {
        true => name.into_owned(),
        false => name.split('.').next().unwrap_or_default().to_owned(),
    }
}

/// Returns true if a path is none of the author's: hidden, or made by a tool.
fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || matches!(&*name, "node_modules" | "target")
}

/// Returns the path of a directory by way of another one that it is in.
fn place_within(path: &Path, dir: &Path) -> Option<PathBuf> {
    let (path, real) = (path.canonicalize().ok()?, dir.canonicalize().ok()?);
    Some(dir.join(path.strip_prefix(real).ok()?))
}

/// A directory and those below it in which files of blueprints may be, but for the host's own.
fn directories(dir: &Path, own: Option<&Path>) -> HashSet<PathBuf> {
    let mut found = HashSet::from([dir.to_owned()]);
    let mut below = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = below.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            // A link may lead to the whole disk.
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_wanted = is_dir && !is_hidden(&path) && Some(&*path) != own;
            if is_wanted && depth < DEEPEST && found.len() < MOST_DIRS {
                found.insert(path.clone());
                below.push((path, depth + 1));
            }
        }
    }
    found
}

/// The contents of a directory of blueprints.
struct Listed {
    /// The main files, sorted.
    files: Vec<PathBuf>,
    /// Files that are named like blueprints and are refused.
    refused: Vec<PathBuf>,
    identity: Identity,
}

/// The main files of the blueprints in a directory, sorted: regular files in it.
pub fn blueprints_in(dir: &Path) -> Vec<PathBuf> {
    list(dir).map(|listed| listed.files).unwrap_or_default()
}

/// The files in a directory that are named like blueprints and are left out, sorted: links out of it,
/// and what is no regular file.
pub fn left_out_of(dir: &Path) -> Vec<PathBuf> {
    let mut refused = list(dir).map(|listed| listed.refused).unwrap_or_default();
    refused.sort();
    refused
}

fn list(dir: &Path) -> io::Result<Listed> {
    let identity = identity(dir)?;
    let mut listed = Listed { files: Vec::new(), refused: Vec::new(), identity };
    let root = std::fs::canonicalize(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let (path, is_main) = match path.is_dir() {
            true => (main_file(&path), true),
            false => (Some(path).filter(|path| is_source(path) || is_flow(path)), false),
        };
        let Some(path) = path else { continue };
        let is_inside = std::fs::canonicalize(&path).is_ok_and(|file| file.starts_with(&root));
        if !is_inside || !path.is_file() {
            listed.refused.push(path);
        } else if is_main || is_flow(&path) || says_blueprint(&path) {
            listed.files.push(path);
        }
    }
    listed.files.sort();
    match self::identity(dir)? == identity {
        true => Ok(listed),
        false => Err(io::Error::other("another directory took its place")),
    }
}

fn identity(dir: &Path) -> io::Result<Identity> {
    std::fs::metadata(dir).map(|meta| (meta.dev(), meta.ino()))
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "lua" || extension == "luau")
}

/// The main file of a directory that is one blueprint.
pub fn main_file(dir: &Path) -> Option<PathBuf> {
    MAIN.iter().map(|name| dir.join(name)).find(|path| path.is_file())
}

/// Returns true if a file is a flow as JSON. Other JSON may be anything.
fn is_flow(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(".flow.json") && !name.starts_with('.'))
}

/// Returns true if a file declares a blueprint; others are modules that blueprints require.
fn says_blueprint(path: &Path) -> bool {
    match read_regular(path, MAX_FILE_BYTES as u64) {
        Ok(bytes) => {
            // One that is not UTF-8 is not gone: it has an error.
            let text = String::from_utf8_lossy(&bytes);
            let direct = [r#"require("swarm").blueprint"#, "require('swarm').blueprint"];
            text.contains("swarm.blueprint") || direct.iter().any(|word| text.contains(word))
        }
        // Nor is one that cannot be read now.
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_is_not_watched_also_if_it_is_reached_over_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (dir, link) = (root.path().join("project"), root.path().join("link"));
        std::fs::create_dir_all(dir.join("data/work")).unwrap();
        std::fs::create_dir_all(dir.join("flows")).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        for (dir, data) in [(&dir, &link), (&link, &dir)] {
            let own = place_within(&data.join("data"), dir);
            assert_eq!(own, Some(dir.join("data")));
            let found = directories(dir, own.as_deref());
            assert_eq!(found, HashSet::from([dir.clone(), dir.join("flows")]));
        }
        assert_eq!(place_within(root.path(), &dir), None);
    }

    #[test]
    fn a_file_declares_a_blueprint_with_or_without_a_name_for_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let cases: [(&[u8], bool); 6] = [
            (b"local swarm = require(\"swarm\")\nreturn swarm.blueprint {}", true),
            (b"return require(\"swarm\").blueprint {}", true),
            (b"return require('swarm').blueprint {}", true),
            (b"-- caf\xe9\nreturn require(\"swarm\").blueprint {}", true),
            (b"return { helper = 1 }", false),
            (b"return { helper = \"\xe9\" }", false),
        ];
        for (text, is_one) in cases {
            let path = dir.path().join("x.lua");
            std::fs::write(&path, text).unwrap();
            let text = text.escape_ascii();
            assert_eq!(says_blueprint(&path), is_one, "{text}");
        }
    }

    #[test]
    fn looks_at_a_large_directory_are_rare() {
        let seconds = Duration::from_secs;
        assert_eq!(rest(false, Duration::from_millis(3)), REST);
        assert_eq!(rest(false, seconds(2)), seconds(40));
        assert_eq!(rest(true, seconds(2)), LOST);
    }
}
