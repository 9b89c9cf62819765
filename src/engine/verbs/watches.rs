//! Blueprints that start by themselves when files change.
//!
//! The host scans the files and reports them; this module decides what that means. The last known
//! state of each file is stored in the database, so that a change while no host ran counts as well.
//! A batch of changes is recorded before its run is started, and the run has an idempotency key of
//! the batch: a crash in between starts none twice and loses none.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    blueprint::{FileWatch, Missed, Trigger, TriggerEvent},
    engine::{
        BlueprintView, EngineError, IdempotencyKey, Program, Schedules, StartRun, rfc3339,
        shared::watch_board::{Directories, WatchBoard},
        verbs::engine::TriggerVerbs,
        verbs::trigger_records::{TRIES, TriggerRecord, id_of},
    },
    protocol::{Json, RunId, Tags},
    store::{Check, StoreError, Write},
};

/// The maximum number of changes that a run is given individually.
const MOST_TOLD: usize = 1_000;

/// The delay before the host checks again whether a run of a watch has ended, in milliseconds.
const AGAIN_MS: u64 = 2_000;

/// The state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    /// Its size in bytes.
    pub size: u64,
    /// The modification time, in Unix nanoseconds.
    pub written_ns: u64,
}

/// Files by their path below the watched directory.
pub type Files = BTreeMap<String, FileMark>;

/// A file watch of a stored blueprint, with its directory.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The blueprint's name.
    pub name: String,
    /// The directory.
    pub dir: PathBuf,
    /// The watch.
    pub watch: Box<FileWatch>,
    missed: Missed,
    input: Option<Json>,
    tags: Tags,
    /// The id of the trigger.
    trigger: String,
    /// The ids of all watches of the blueprint: stored data of others is deleted.
    ids: Arc<[String]>,
}

impl Watched {
    /// Returns the identity of the watch.
    pub fn id(&self) -> String {
        format!("{} {}", self.name, self.watch.id())
    }
}

impl WatchBoard {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Directories> {
        self.directories.lock()
    }

    /// Notifies the scanner that a name refers to another version.
    pub(crate) fn moved(&self) {
        self.moved.notify_one();
    }

    /// Adds the state of a blueprint's watches to its view.
    pub(crate) fn tell(&self, view: &mut BlueprintView, on: &[Trigger]) {
        let board = self.lock();
        for (shown, trigger) in view.on.iter_mut().zip(on) {
            let TriggerEvent::Watch { watch, .. } = &trigger.event else { continue };
            match board.directory(&view.name, &view.hash, watch) {
                Ok(dir) => shown.directory = Some(dir.display().to_string()),
                Err(problem) => shown.problem = Some(problem),
            }
            if let Some(problem) = board.problems.get(&format!("{} {}", view.name, watch.id())) {
                shown.problem = Some(problem.clone());
            }
        }
    }
}

impl Directories {
    fn directory(&self, name: &str, hash: &str, watch: &FileWatch) -> Result<PathBuf, String> {
        if !self.watches {
            return Err("this host watches no files; `moonswarm serve` does".to_owned());
        }
        if let Some(root) = watch.root() {
            return self.roots.get(root).cloned().ok_or_else(|| {
                format!("moonswarm.toml has no directory `{root}` in its table [watch]")
            });
        }
        let home = self.homes.get(name).filter(|(version, _)| version == hash);
        home.map(|(_, dir)| dir.clone()).ok_or_else(|| {
            "this version was not read from the watched directory, so that it has no directory of its own; give the trigger a `root`".to_owned()
        })
    }
}

/// The stored data of a watch.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct WatchState {
    marks: Files,
    /// The number of batches so far.
    batch: u64,
    /// The batch for which a run is being started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<Batch>,
    /// Its runs that were open at the last check.
    #[serde(default)]
    open: Vec<RunId>,
}

/// The changes of one batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Batch {
    changes: Vec<Change>,
    more: usize,
    missed: bool,
    at_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Change {
    path: String,
    change: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum How {
    Created,
    Changed,
    Removed,
}

impl TriggerVerbs<'_> {
    /// Enables file watches on this host: in these named directories, in addition to those of its
    /// blueprints.
    pub fn watch_files(self, roots: BTreeMap<String, PathBuf>) {
        let mut board = self.engine.shared().watches.lock();
        board.roots = roots;
        board.watches = true;
    }

    /// Returns the notification for a name that refers to another version, after which its files
    /// must be scanned.
    pub fn names_moved(self) -> Arc<Notify> {
        Arc::clone(&self.engine.shared().watches.moved)
    }

    /// Sets the directory from which a version of a blueprint was read.
    pub fn set_home(self, name: &str, hash: &str, dir: PathBuf) {
        let mut board = self.engine.shared().watches.lock();
        board.homes.insert(name.to_owned(), (hash.to_owned(), dir));
        drop(board);
        self.engine.shared().watches.moved();
    }

    /// Records the problem of a watch, or that there is none; returns true if that is a change.
    pub fn note_watch(self, watched: &Watched, problem: Option<String>) -> bool {
        let mut board = self.engine.shared().watches.lock();
        match problem {
            None => board.problems.remove(&watched.id()).is_some(),
            Some(problem) => board.problems.insert(watched.id(), problem.clone()) != Some(problem),
        }
    }

    /// Returns the file watches of all stored blueprints that have a directory.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn file_watches(self, known: &mut Schedules) -> Result<Vec<Watched>, EngineError> {
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        known.triggers.retain(|kept, _| names.iter().any(|(_, hash, _)| hash == kept));
        let mut all = Vec::new();
        for (name, hash, _) in names {
            let triggers = self.triggers(known, &name, &hash).await;
            let watches = triggers.iter().filter_map(|trigger| match &trigger.event {
                TriggerEvent::Watch { watch, missed } => Some((watch, *missed, trigger)),
                TriggerEvent::Schedule { .. } | TriggerEvent::Signal(_) => None,
            });
            let watches: Vec<_> = watches.collect();
            let ids: Arc<[String]> = watches.iter().map(|(watch, ..)| watch.id()).collect();
            let board = self.engine.shared().watches.lock();
            for (watch, missed, trigger) in watches {
                let Ok(dir) = board.directory(&name, &hash, watch) else { continue };
                all.push(Watched {
                    name: name.clone(),
                    dir,
                    watch: watch.clone(),
                    missed,
                    input: trigger.input.clone(),
                    tags: trigger.tags.clone(),
                    trigger: id_of(&name, trigger),
                    ids: Arc::clone(&ids),
                });
            }
        }
        Ok(all)
    }

    /// Handles the scanned files of a watch, and starts a run if something changed. `began` is true
    /// at the first scan of a host: earlier changes were missed.
    ///
    /// A new watch begins with the existing files. While the maximum number of runs of a watch is
    /// open, changes are collected; then the time of the next check is returned.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written, or the run cannot be started now; the batch
    /// is kept. A run that could never be started is logged.
    pub async fn saw_files(
        self,
        watched: &Watched,
        seen: &Files,
        began: bool,
    ) -> Result<Option<u64>, EngineError> {
        match self.take_in(watched, seen, began).await {
            // Another process handles the same files, and was faster.
            Err(EngineError::Store(StoreError::Changed { .. })) => {
                Ok(Some(self.engine.shared().clock.now_ms() + AGAIN_MS))
            }
            result => result,
        }
    }

    async fn take_in(
        self,
        watched: &Watched,
        seen: &Files,
        began: bool,
    ) -> Result<Option<u64>, EngineError> {
        let now = self.engine.shared().clock.now_ms();
        let (_, mut all) = self.kept_of(&watched.name).await?;
        let Some(mut kept) = all.remove(&watched.watch.id()) else {
            let begun = WatchState { marks: seen.clone(), ..WatchState::default() };
            self.keep(watched, None, &begun).await?;
            return Ok(None);
        };
        let mut stored = kept.clone();
        if self
            .records(&watched.name)
            .await?
            .get(&watched.trigger)
            .is_some_and(|it| it.paused_ms.is_some())
        {
            return self.pass_over(watched, kept, seen).await;
        }
        if kept.pending.is_some() {
            self.start_batch(watched, &mut kept).await?;
            self.keep(watched, Some(&stored), &kept).await?;
            stored.clone_from(&kept);
        }
        let (changes, more) = changes(&kept.marks, seen);
        if changes.is_empty() {
            return Ok(None);
        }
        if began && watched.missed == Missed::Skip {
            kept.marks.clone_from(seen);
            self.keep(watched, Some(&stored), &kept).await?;
            return Ok(None);
        }
        kept.open = self.still_open(kept.open).await?;
        if kept.open.len() >= watched.watch.max_open() as usize {
            return Ok(Some(now + AGAIN_MS));
        }
        kept.marks = seen.clone();
        kept.batch += 1;
        kept.pending = Some(Batch { changes, more, missed: began, at_ms: now });
        self.keep(watched, Some(&stored), &kept).await?;
        stored.clone_from(&kept);
        self.start_batch(watched, &mut kept).await?;
        self.keep(watched, Some(&stored), &kept).await?;
        Ok(None)
    }

    /// Takes the files of a paused watch as they are: their changes start nothing, also later.
    async fn pass_over(
        self,
        watched: &Watched,
        mut kept: WatchState,
        seen: &Files,
    ) -> Result<Option<u64>, EngineError> {
        if kept.marks != *seen {
            let before = kept.clone();
            kept.marks.clone_from(seen);
            self.keep(watched, Some(&before), &kept).await?;
            self.note(&watched.name, &watched.trigger, |record| record.skipped += 1).await;
        }
        Ok(None)
    }

    async fn start_batch(
        self,
        watched: &Watched,
        kept: &mut WatchState,
    ) -> Result<(), EngineError> {
        let Some(batch) = kept.pending.clone() else { return Ok(()) };
        let facts = json!({
            "kind": "watch", "watch": watched.watch.pattern(), "root": watched.watch.root(),
            "at": rfc3339(batch.at_ms), "missed": batch.missed,
            "changes": batch.changes, "more": batch.more,
        });
        let start = StartRun {
            input: watched.input.clone().unwrap_or_else(Json::null),
            trigger: Json::from(&facts),
            // The paths in the trigger are relative to it.
            workdir: Some(watched.dir.display().to_string()),
            tags: watched.tags.clone(),
            ..StartRun::new(Program::Named(watched.name.clone()))
        };
        let word = format!("{} {}", watched.id(), kept.batch);
        let key = IdempotencyKey { route: "watch", body: word.clone(), key: word };
        match self.start_by_itself("watch", &watched.name, start, key).await {
            Ok(started) => {
                kept.open.push(started.run);
                self.note_start(&watched.name, &watched.trigger, started.run).await;
            }
            Err(
                error @ (EngineError::Busy { .. } | EngineError::Store(_) | EngineError::Stopping),
            ) => return Err(error),
            Err(error) => {
                let (watch, reason) = (watched.watch.pattern(), error.to_string());
                let failed = |record: &mut TriggerRecord| record.last_error = Some(reason.clone());
                self.note(&watched.name, &watched.trigger, failed).await;
                tracing::warn!(blueprint = watched.name, watch, %error, "could not start a run for changed files");
            }
        }
        kept.pending = None;
        Ok(())
    }

    async fn still_open(self, runs: Vec<RunId>) -> Result<Vec<RunId>, EngineError> {
        self.engine
            .read(move |store| {
                let mut open = Vec::new();
                for run in runs {
                    if store.header(run.num())?.is_some_and(|header| !header.status.is_ended()) {
                        open.push(run);
                    }
                }
                Ok(open)
            })
            .await
    }

    /// Returns the stored data of all watches of a blueprint: as text, and by id.
    async fn kept_of(
        self,
        name: &str,
    ) -> Result<(Option<String>, BTreeMap<String, WatchState>), EngineError> {
        let key = key_of(name);
        let stored = self.engine.read(move |store| store.meta(&key)).await?;
        let all = stored.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Ok((stored, all.unwrap_or_default()))
    }

    /// Updates the stored data of a watch, if it is still `before`; that of the blueprint's other
    /// watches is preserved.
    async fn keep(
        self,
        watched: &Watched,
        before: Option<&WatchState>,
        after: &WatchState,
    ) -> Result<(), EngineError> {
        let (key, id) = (key_of(&watched.name), watched.watch.id());
        for _ in 0..TRIES {
            let (stored, mut all) = self.kept_of(&watched.name).await?;
            if all.get(&id) != before {
                break;
            }
            all.retain(|id, _| watched.ids.contains(id));
            all.insert(id.clone(), after.clone());
            let value = serde_json::to_string(&all).expect("marks by path are plain data");
            let unchanged = Check::MetaIs { key: key.clone(), value: stored };
            match self
                .engine
                .write(vec![unchanged], vec![Write::PutMeta { key: key.clone(), value }])
                .await
            {
                Err(EngineError::Store(StoreError::Changed { .. })) => {}
                result => return result,
            }
        }
        Err(StoreError::Changed { key }.into())
    }
}

/// Returns the key of the stored data of a blueprint's watches.
pub(crate) fn key_of(name: &str) -> String {
    format!("watches:{name}")
}

/// Returns the changes in the order of their paths, and the number of those beyond the limit.
fn changes(before: &Files, now: &Files) -> (Vec<Change>, usize) {
    let mut all: Vec<Change> = now
        .iter()
        .filter_map(|(path, mark)| match before.get(path) {
            None => Some((path, How::Created)),
            Some(old) if old != mark => Some((path, How::Changed)),
            Some(_) => None,
        })
        .chain(before.keys().filter(|path| !now.contains_key(*path)).map(|it| (it, How::Removed)))
        .map(|(path, change)| Change { path: path.clone(), change })
        .collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    let more = all.len().saturating_sub(MOST_TOLD);
    all.truncate(MOST_TOLD);
    (all, more)
}

#[cfg(test)]
mod tests;
