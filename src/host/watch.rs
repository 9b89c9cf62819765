//! The watched directory: each blueprint in it stands under its own name.
//!
//! `NAME.lua`, `NAME.luau`, `NAME.flow.json` and `NAME/main.lua` are blueprints. A file that does not
//! compile leaves the last good version in place, and the log says so, once for each change.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use super::HostError;
use crate::{
    blueprint::Bundle,
    engine::{Engine, EngineError},
    tasks::Tasks,
};

/// How long a directory must be quiet before it is read again.
const QUIET: Duration = Duration::from_millis(200);

/// Keeps watching while it lives.
pub(super) struct Watch {
    _watcher: RecommendedWatcher,
}

/// What was last made of each file: its bundle's hash, or why there is none.
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
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    // One change that waits stands for all.
                    let _ = changed.try_send(());
                }
            })
            .map_err(|error| fault(error.to_string()))?;
        watcher.watch(&dir, RecursiveMode::Recursive).map_err(|error| fault(error.to_string()))?;
        let mut seen = Seen::new();
        adopt(&dir, &engine, &mut seen).await;
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    change = changes.recv() => if change.is_none() { return },
                }
                tokio::time::sleep(QUIET).await;
                while changes.try_recv().is_ok() {}
                adopt(&dir, &engine, &mut seen).await;
            }
        });
        Ok(Self { _watcher: watcher })
    }
}

/// Takes over what is new or other than it was.
async fn adopt(dir: &Path, engine: &Engine, seen: &mut Seen) {
    let paths = blueprints_in(dir);
    seen.retain(|path, _| paths.contains(path));
    for path in paths {
        let bundle = Bundle::load(&path);
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
                // The next change of any file tries again.
                continue;
            }
        }
        seen.insert(path, now);
    }
}

/// The main files of the blueprints in a directory, sorted.
pub fn blueprints_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let is_source =
                path.extension().is_some_and(|extension| extension == "lua" || extension == "luau");
            if path.is_dir() {
                main_file(&path)
            } else if is_flow(&path) || (is_source && says_blueprint(&path)) {
                Some(path)
            } else {
                None
            }
        })
        .collect();
    found.sort();
    found
}

/// The main file of a directory that is one blueprint.
pub fn main_file(dir: &Path) -> Option<PathBuf> {
    ["main.lua", "main.luau"].iter().map(|name| dir.join(name)).find(|path| path.is_file())
}

/// Whether a file is a flow as JSON. Other JSON may be anything.
fn is_flow(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    path.is_file()
        && name.is_some_and(|name| name.ends_with(".flow.json") && !name.starts_with('.'))
}

/// Whether a file declares a blueprint; others are modules that blueprints require.
fn says_blueprint(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.contains("swarm.blueprint"))
}
