//! Files that change: what `--watch` waits for.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// The time for which files must be unchanged before a change counts.
const QUIET: Duration = Duration::from_millis(150);

/// Watches the Lua, JSON and Markdown files below some directories.
pub struct Changes {
    _watcher: RecommendedWatcher,
    changed: mpsc::Receiver<()>,
    /// A change was heard of and not told yet.
    heard: bool,
}

impl Changes {
    /// Watches directories.
    ///
    /// # Errors
    /// Fails when the system cannot watch one of them.
    pub fn watch(dirs: &[PathBuf]) -> Result<Self> {
        let (tell, changed) = mpsc::channel(1);
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                let matters = |event: &notify::Event| {
                    !event.kind.is_access() && event.paths.iter().any(|path| is_source(path))
                };
                if event.is_ok_and(|event| matters(&event)) {
                    // One change that waits stands for all.
                    let _ = tell.try_send(());
                }
            })
            .context("watch files")?;
        for dir in dirs {
            watcher
                .watch(dir, RecursiveMode::Recursive)
                .with_context(|| format!("watch {}", dir.display()))?;
        }
        Ok(Self { _watcher: watcher, changed, heard: false })
    }

    /// Waits for the next change; false when nothing is watched any more.
    ///
    /// # Cancel safety
    /// May be dropped at any time: a change that was heard of is told by the next call.
    pub async fn next(&mut self) -> bool {
        if !self.heard && self.changed.recv().await.is_none() {
            return false;
        }
        self.heard = true;
        // An editor writes a file in several steps.
        while let Ok(Some(())) = tokio::time::timeout(QUIET, self.changed.recv()).await {}
        self.heard = false;
        true
    }
}

/// Returns true for a source file of a blueprint; snapshots of tests are not.
fn is_source(path: &std::path::Path) -> bool {
    let hidden = path.components().any(|part| {
        matches!(part.as_os_str().to_str(), Some(".moonswarm" | ".git" | "snapshots" | "target"))
    });
    let extension = path.extension().and_then(|it| it.to_str());
    !hidden && matches!(extension, Some("lua" | "luau" | "json" | "md" | "j2" | "txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_changed_blueprint_is_told_and_another_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = Changes::watch(&[dir.path().to_owned()]).unwrap();
        std::fs::write(dir.path().join("a.log"), "x").unwrap();
        std::fs::write(dir.path().join("a.lua"), "return 1").unwrap();
        // Whoever waits may have something else to do just after it heard of a change.
        while !changes.heard {
            let _ = tokio::time::timeout(QUIET / 10, changes.next()).await;
        }
        let told = tokio::time::timeout(Duration::from_secs(20), changes.next()).await;
        assert!(told.unwrap());
        assert!(!is_source(&dir.path().join("snapshots/x.json")));
        assert!(is_source(std::path::Path::new("agents/reviewer.md")));
    }
}
