//! The watched directory: each blueprint in it is published under its own name.
//!
//! `NAME.lua`, `NAME.luau`, `NAME.flow.json` and `NAME/main.lua` are blueprints. A file that does
//! not compile leaves the last good version in place; the log reports that once per change.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use super::HostError;
use crate::{
    blueprint::{Bundle, MAX_FILE_BYTES, read_text},
    engine::{Engine, EngineError},
    tasks::Tasks,
};

/// The main file of a directory that is one blueprint.
const MAIN: [&str; 2] = ["main.lua", "main.luau"];
/// The time without changes before a directory is read again.
const QUIET: Duration = Duration::from_millis(200);

/// Watches the directory until it is dropped.
pub(super) struct Watch {
    _watcher: RecommendedWatcher,
}

/// The last result for each file: the hash of its bundle, or the reason why there is none.
type Seen = HashMap<PathBuf, Result<String, String>>;

impl Watch {
    /// Reads `dir` now, and again whenever something in it changes.
    pub(super) async fn start(
        dir: &Path,
        engine: Engine,
        tasks: &Tasks,
    ) -> Result<Self, HostError> {
        let fault = |reason: String| HostError::File {
            what: "watch",
            path: dir.display().to_string(),
            reason,
        };
        let dir = std::path::absolute(dir).map_err(|error| fault(error.to_string()))?;
        let (changed, mut changes) = mpsc::channel(1);
        let told = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // One pending change stands for all.
                let _ = changed.try_send(());
            }
        };
        // A link may lead to the whole disk.
        let within = notify::Config::default().with_follow_symlinks(false);
        let mut watcher =
            RecommendedWatcher::new(told, within).map_err(|error| fault(error.to_string()))?;
        watcher.watch(&dir, RecursiveMode::Recursive).map_err(|error| fault(error.to_string()))?;
        let mut seen = Seen::new();
        adopt(&dir, &engine, tasks, &mut seen).await;
        let (stopping, own) = (tasks.stopping().clone(), tasks.clone());
        tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    change = changes.recv() => if change.is_none() { return },
                }
                tokio::time::sleep(QUIET).await;
                while changes.try_recv().is_ok() {}
                adopt(&dir, &engine, &own, &mut seen).await;
            }
        });
        Ok(Self { _watcher: watcher })
    }
}

/// Publishes new and changed blueprints.
async fn adopt(dir: &Path, engine: &Engine, tasks: &Tasks, seen: &mut Seen) {
    let within = dir.to_owned();
    // Reading a slow disk must not block the threads of the runtime.
    let look = tasks.spawn_blocking(move || {
        let Listed { files, refused } = list(&within);
        let load = |path: PathBuf| (Bundle::load(&path), path);
        (files.into_iter().map(load).collect::<Vec<_>>(), refused)
    });
    // The task fails only when the host stops.
    let Ok((bundles, refused)) = look.await else { return };
    seen.retain(|path, _| bundles.iter().any(|(_, it)| it == path) || refused.contains(path));
    for path in refused {
        let reason = "it is a link out of the directory, or no regular file: it is left out";
        if seen.insert(path.clone(), Err(reason.to_owned())).is_none() {
            tracing::warn!(file = %path.display(), reason);
        }
    }
    for (bundle, path) in bundles {
        let now = match &bundle {
            Ok(bundle) => Ok(bundle.hash().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        if seen.get(&path) == Some(&now) {
            continue;
        }
        let taken = match bundle {
            Ok(bundle) => engine.adopt_blueprint(bundle).await,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "left the last good version in place");
                seen.insert(path, now);
                continue;
            }
        };
        match taken {
            Ok(view) => {
                tracing::info!(name = view.name, hash = view.hash, "blueprint");
                let home = path.parent().unwrap_or(dir);
                engine.set_home(&view.name, &view.hash, home.to_owned());
            }
            Err(EngineError::Findings(findings)) => {
                for finding in findings.iter().filter(|finding| finding.is_error()) {
                    tracing::warn!(%finding, "left the last good version in place");
                }
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "could not store a blueprint");
                // The next change of any file retries.
                continue;
            }
        }
        seen.insert(path, now);
    }
}

/// The content of a directory of blueprints.
struct Listed {
    /// The main files, sorted.
    files: Vec<PathBuf>,
    /// Files with a blueprint's name that are not accepted.
    refused: Vec<PathBuf>,
}

/// Returns the main files of the blueprints in a directory, sorted; only regular files within it.
pub fn blueprints_in(dir: &Path) -> Vec<PathBuf> {
    list(dir).files
}

fn list(dir: &Path) -> Listed {
    let mut listed = Listed { files: Vec::new(), refused: Vec::new() };
    let Ok(root) = std::fs::canonicalize(dir) else { return listed };
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
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
    listed
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "lua" || extension == "luau")
}

/// Returns the main file of a directory that is one blueprint.
pub fn main_file(dir: &Path) -> Option<PathBuf> {
    MAIN.iter().map(|name| dir.join(name)).find(|path| path.is_file())
}

/// Returns true if a file is a flow as JSON; other JSON may be anything.
fn is_flow(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(".flow.json") && !name.starts_with('.'))
}

/// Returns true if a file declares a blueprint; others are modules that blueprints require.
fn says_blueprint(path: &Path) -> bool {
    let text = read_text(path, MAX_FILE_BYTES as u64);
    text.is_ok_and(|text| text.contains("swarm.blueprint"))
}
