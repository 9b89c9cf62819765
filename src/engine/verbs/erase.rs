//! Erasing: everything of a person, of runs, or that contains a text.
//!
//! First a dry run, which lists what would go; then the act, with the digest of that list. Runs go
//! as a whole. The act is marked in the store before its first deletion and unmarked after the
//! database was written anew, so a host that dies in between knows of it: the act is repeated, and
//! goes on where it ended. The audit log has a line for its begin and its end, with numbers only.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{
        Caller, Engine, EngineError,
        verbs::{
            engine::UpkeepVerbs,
            erase_steps::{portions, steps},
            erase_view::{CopyView, Erase, EraseView, Erased, ErasedRun, Stays},
            run_dirs::{RunDirs, TextHits, is_stored, unstored},
        },
    },
    fault,
    middleware::{AuditLine, Change, Keep as _},
    protocol::{Code, RunId},
    store::{
        Check, ErasureTarget, MOST_ERASED_RUNS, Store, StoreError, Trace, Traces, TracesInCopy,
        Write,
    },
    token::{Verb, is_same_subject},
};

/// The least and the greatest number of bytes of a text that is looked for.
const TEXT: std::ops::RangeInclusive<usize> = 4..=1_024;
/// The number of rows of long histories that are cleared in one commit.
const CLEARED: Write = Write::Tidy { rows: 2_048, pages: 0 };
/// The key of the mark of an act that is not complete.
const MARK: &str = "erase.unfinished";
/// A part of the mark while rows may be left, and not only directories.
const BEGUN: &str = "begun";
/// The number of runs that a refusal names.
const NAMED: usize = 10;

/// The traces that were found, and the reasons that prevent their erasure.
struct Found {
    traces: Traces,
    /// Runs that have not ended, and runs that something open needs.
    blocked: BTreeMap<u64, Code>,
    named_in: Vec<RunId>,
    copies: Vec<TracesInCopy>,
    is_unfinished: bool,
    files: Files,
    other_nodes: u64,
}

/// The directories with the text, or of runs of the target that are not stored.
#[derive(Default)]
struct Files {
    /// The runs that are not stored, and have a directory.
    unstored: BTreeSet<RunId>,
    /// The number of directories with the text whose runs another database may have.
    foreign: u64,
    /// The number of directories of deleted versions with the text.
    bundles: u64,
    /// The number of files and directories that could not be read.
    unread: u64,
}

/// The runs and the number of versions whose directories an act could not remove.
#[derive(Default)]
struct Left {
    runs: BTreeSet<RunId>,
    bundles: u64,
}

impl Erased {
    fn target(&self) -> Result<ErasureTarget, EngineError> {
        let mut target = ErasureTarget::default();
        match self {
            Self::Subject(subject) if subject.is_empty() || subject.len() > *TEXT.end() => {
                return Err(bad("a subject has 1 to 1024 bytes"));
            }
            Self::Subject(subject) => target.subject = Some(subject.clone()),
            Self::Runs(runs) if runs.is_empty() || runs.len() > MOST_ERASED_RUNS => {
                return Err(bad("name 1 to 2000 runs"));
            }
            Self::Runs(runs) => target.runs = runs.iter().map(|run| run.num()).collect(),
            Self::Match(text) if !TEXT.contains(&text.len()) || text.trim() != text => {
                let rule = "a text has 4 to 1024 bytes, and no space around it: a shorter one is in \
                            everything";
                return Err(bad(rule));
            }
            Self::Match(text) => target.text = Some(text.clone()),
        }
        Ok(target)
    }
}

impl Files {
    /// Looks into the directories. Runs with the text that are stored are added to the target.
    fn look(
        store: &dyn Store,
        (dirs, named): (&RunDirs, &Erased),
        target: &mut ErasureTarget,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, StoreError> {
        let mut files = Self::default();
        let forms = target.forms();
        if !forms.is_empty() {
            let TextHits { runs, bundles, unread } = dirs.search(store, &forms, is_over);
            (files.bundles, files.unread) = (bundles, unread);
            let since_ms = dirs.since(store)?;
            for run in runs {
                if is_stored(store, run)? {
                    target.runs.insert(run.num());
                } else if since_ms.is_some_and(|since_ms| run.created_ms() >= since_ms) {
                    files.unstored.insert(run);
                } else {
                    files.foreign += 1;
                }
            }
        }
        // Those of the last act are named by its mark.
        let (_, marked) = marked(&store.meta(MARK)?.unwrap_or_default());
        let named = match named {
            Erased::Runs(runs) => runs.as_slice(),
            Erased::Subject(_) | Erased::Match(_) => &[],
        };
        let there = dirs.all_runs();
        let named = named.iter().copied().chain(marked).filter(|run| there.contains(run));
        files.unstored.extend(unstored(store, named)?);
        Ok(files)
    }

    fn is_nothing(&self) -> bool {
        self.unstored.is_empty() && self.bundles == 0
    }

    fn stays(&self) -> impl Iterator<Item = Stays> {
        let unread = "these files could not be read: look into them by hand, or erase their runs";
        let foreign = "directories of runs that are not of this database: look into them by hand";
        let places = [(self.unread, unread), (self.foreign, foreign)];
        places.into_iter().filter(|(rows, _)| *rows > 0).map(|(rows, reason)| in_work(rows, reason))
    }
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.runs.is_empty() && self.bundles == 0
    }
}

impl EraseView {
    /// Reports what the act could not remove.
    fn report(&mut self, left: &Left) {
        for run in &mut self.runs {
            if left.runs.contains(&run.run) {
                run.result = "files_left".to_owned();
            }
        }
        let rows = left.runs.len() as u64 + left.bundles;
        if rows > 0 {
            let reason = "these directories could not be removed, the log says why: remove them by \
                          hand, or erase again";
            self.stays.push(in_work(rows, reason));
        }
    }
}

impl Found {
    fn look(
        store: &dyn Store,
        target: &ErasureTarget,
        mut files: Files,
    ) -> Result<Self, StoreError> {
        // A run may have been imported since.
        files.unstored = unstored(store, std::mem::take(&mut files.unstored))?;
        let traces = store.upkeep().traces(target)?;
        let mut blocked = BTreeMap::new();
        for run in &traces.runs {
            if !run.ended {
                blocked.insert(run.num, Code::NotEnded);
            } else if !is_retired(store, run.num)? {
                blocked.insert(run.num, Code::InUse);
            }
        }
        let mut named_in = Vec::new();
        for run in &traces.named_in {
            named_in.extend(store.header(*run)?.map(|header| header.id()));
        }
        let copies = store.upkeep().copies(target, &traces.runs)?;
        let is_unfinished = store.meta(MARK)?.is_some_and(|mark| !mark.is_empty());
        Ok(Self { traces, blocked, named_in, copies, is_unfinished, files, other_nodes: 0 })
    }

    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for run in &self.traces.runs {
            hasher.update(format!("\n{} {}", run.num, run.ended).as_bytes());
        }
        for row in &self.traces.rows {
            hasher.update(format!("\n{row:?}").as_bytes());
        }
        for run in &self.files.unstored {
            hasher.update(format!("\n{run}").as_bytes());
        }
        hasher.update(format!("\n{}", self.files.bundles).as_bytes());
        hasher.finalize().to_hex()[..32].to_owned()
    }

    fn is_nothing(&self) -> bool {
        self.traces.runs.is_empty()
            && self.traces.rows.is_empty()
            && self.files.is_nothing()
            && !self.is_unfinished
    }

    fn view(&self, digest: String, dry_run: bool) -> EraseView {
        let mut view = EraseView {
            dry_run,
            digest,
            named_in: self.named_in.clone(),
            copies: self.copies.iter().cloned().map(CopyView::from).collect(),
            more: self.traces.more,
            unfinished: dry_run && self.is_unfinished,
            ..EraseView::default()
        };
        let stored: BTreeMap<u64, u64> =
            self.traces.runs.iter().map(|run| (run.num, run.created_ms)).collect();
        for run in &self.traces.runs {
            let result = match self.blocked.get(&run.num) {
                Some(code) => code.as_str(),
                None if dry_run => "eligible",
                None => "done",
            };
            let id = RunId::new(run.num, run.created_ms);
            let descent = self.traces.descents.get(&run.num);
            let of = descent.and_then(|(_, of)| Some(RunId::new(*of, *stored.get(of)?)));
            let descent = descent.map(|(descent, _)| descent.as_str().to_owned());
            view.runs.push(ErasedRun { run: id, result: result.to_owned(), descent, of });
            view.entries += run.entries;
            view.files += run.files;
            view.bytes += run.bytes;
        }
        for row in &self.traces.rows {
            *view.rows.entry(row.place().to_owned()).or_default() += 1;
        }
        if !self.files.is_nothing() {
            let directories = self.files.unstored.len() as u64 + self.files.bundles;
            view.rows.insert("directories".to_owned(), directories);
        }
        let stays = |(place, rows): (&&str, &u64)| Stays {
            place: (*place).to_owned(),
            rows: *rows,
            reason: why_it_stays(place).to_owned(),
        };
        view.stays = self.traces.stays.iter().map(stays).chain(self.files.stays()).collect();
        if self.other_nodes > 0 && !self.traces.runs.is_empty() {
            let reason = "these machines keep the directories of runs that they have driven, until \
                          they drive again";
            let (place, reason) = ("nodes".to_owned(), reason.to_owned());
            view.stays.push(Stays { place, rows: self.other_nodes, reason });
        }
        view
    }

    /// Refuses while a run is open.
    fn refuse_open(&self) -> Result<(), EngineError> {
        let Some(code) = self.blocked.values().next() else { return Ok(()) };
        let runs = self.traces.runs.iter().filter(|run| self.blocked.contains_key(&run.num));
        let named: Vec<String> =
            runs.take(NAMED).map(|run| RunId::new(run.num, run.created_ms).to_string()).collect();
        let more = match self.blocked.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "erase: {}{more} must have ended first, with what they called and what called them; \
             cancel them, or wait",
            named.join(", ")
        );
        Err(EngineError::Conflict { code: *code, message })
    }
}

impl UpkeepVerbs<'_> {
    /// Erases, or reports what would be erased. Once something is removed, it goes on to its end also
    /// if the caller is gone.
    ///
    /// # Errors
    /// Fails when the caller lacks permission or would erase itself, when a run of it is open, when
    /// what is found is not what the digest is of, or the store cannot be written.
    pub async fn erase(self, caller: &Caller, erase: Erase) -> Result<EraseView, EngineError> {
        caller.grant.check(Verb::HostErase, &[])?;
        let target = erase.what.target()?;
        if let Erased::Subject(subject) = &erase.what
            && (is_same_subject(subject, &caller.subject) || is_same_subject(subject, "host"))
        {
            return Err(bad("a person is erased by somebody else: use the token of another admin"));
        }
        let (engine, caller) = (self.engine.clone(), caller.clone());
        let (tell, told) = oneshot::channel();
        let gone = CancellationToken::new();
        let _here = gone.clone().drop_guard();
        self.engine.shared().tasks.spawn(async move {
            let result = engine.upkeep().carry_out(&caller, &erase, &target, gone).await;
            // The caller may be gone.
            let _ = tell.send(result);
        });
        told.await.map_err(|_| EngineError::Stopping)?
    }

    async fn carry_out(
        self,
        caller: &Caller,
        erase: &Erase,
        target: &ErasureTarget,
        gone: CancellationToken,
    ) -> Result<EraseView, EngineError> {
        let (mut wanted, named, dirs) = (target.clone(), erase.what.clone(), self.dirs());
        let stopping = self.engine.shared().tasks.stopping().clone();
        let look = self.engine.read(move |store| {
            let is_over = || stopping.is_cancelled() || gone.is_cancelled();
            let files = Files::look(store, (&dirs, &named), &mut wanted, &is_over)?;
            // A search that was cut short has found nothing for sure.
            if is_over() { Err(StoreError::Closed) } else { Ok((files, wanted)) }
        });
        let (files, wanted) = look.await?;
        // No copy of the database is made meanwhile.
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let look = self.engine.read(move |store| Found::look(store, &wanted, files));
        let mut found = look.await?;
        found.other_nodes = self.other_nodes();
        let digest = found.digest();
        let Some(given) = &erase.digest else { return Ok(found.view(digest, true)) };
        if *given != digest {
            return Err(EngineError::Conflict {
                code: Code::SelectionChanged,
                message: "erase: what is found is not what the digest is of; do a dry run again"
                    .to_owned(),
            });
        }
        found.refuse_open()?;
        if found.traces.rows.contains(&Trace::Token(caller.jti.clone())) {
            return Err(bad("the token of this request would be erased: use another one"));
        }
        let mut view = found.view(digest, false);
        // A text that is in no row any more may still be in free space.
        if !found.is_nothing() || matches!(erase.what, Erased::Match(_)) {
            let left = self.remove(caller, erase, &found).await?;
            view.rewritten = !view.more;
            view.report(&left);
        }
        Ok(view)
    }

    async fn remove(
        self,
        caller: &Caller,
        erase: &Erase,
        found: &Found,
    ) -> Result<Left, EngineError> {
        let more = found.traces.more;
        let now_ms = self.engine.shared().clock.now_ms();
        self.note_erasure(caller, erase, found, "begun").await?;
        let live = vec![Check::TokenLive(caller.jti.clone())];
        // Also the runs that the last act has left.
        let value = mark_of(now_ms, &found.files.unstored, true);
        let mark = Write::PutMeta { key: MARK.to_owned(), value };
        self.engine.write(live, vec![mark]).await?;
        fault::point("engine.erase_marked");
        let mut left = self.remove_rows(&found.traces).await?;
        left.runs.extend(self.forget_files(found.files.unstored.clone()).await);
        left.runs.extend(self.sweep_directories().await?);
        fault::point("engine.erase_files");
        if more {
            // The next request goes on.
            let value = mark_of(now_ms, &left.runs, true);
            let mark = Write::PutMeta { key: MARK.to_owned(), value };
            self.engine.write(Vec::new(), vec![mark]).await?;
            return Ok(left);
        }
        let marked = match left.runs.is_empty() {
            true => String::new(),
            false => mark_of(now_ms, &left.runs, false),
        };
        while self.engine.read(|store| store.upkeep().space()).await?.debris {
            self.engine.write(Vec::new(), vec![CLEARED]).await?;
        }
        self.engine.write(Vec::new(), vec![Write::Rewrite]).await?;
        fault::point("engine.erase_rewritten");
        let outcome = if left.is_nothing() { "done" } else { "files_left" };
        let unmark = Write::PutMeta { key: MARK.to_owned(), value: marked };
        self.engine.write(Vec::new(), vec![unmark]).await?;
        self.note_erasure(caller, erase, found, outcome).await?;
        Ok(left)
    }

    /// Removes what was found in the store: tokens, runs with their directories, other rows, and the
    /// files of sources.
    async fn remove_rows(self, found: &Traces) -> Result<Left, EngineError> {
        let rows = &found.rows;
        // First, so that nothing new is written with them.
        for row in rows {
            if let Trace::Token(jti) = row {
                let owner = self.engine.dispatches().owner();
                self.engine.tokens().revoke(&owner, jti).await?;
            }
        }
        let runs = self.remove_in_steps(found).await?;
        if !self.has_unstored_bundles().await? {
            return Ok(Left { runs, bundles: 0 });
        }
        let alone = self.alone().await;
        Ok(Left { runs, bundles: self.remove_bundles(alone).await? })
    }

    /// Removes rows a few at a time. A source goes with the last run that has it, so that a host that
    /// dies in between leaves none that no run has.
    async fn remove_in_steps(self, found: &Traces) -> Result<BTreeSet<RunId>, EngineError> {
        let is_source = |row: &&Trace| matches!(row, Trace::Blueprint { .. });
        let (sources, rows): (Vec<&Trace>, Vec<&Trace>) = found.rows.iter().partition(is_source);
        let ids = found.runs.iter().map(|run| RunId::new(run.num, run.created_ms));
        let ids: Vec<RunId> = ids.collect();
        let has_sources = !sources.is_empty();
        let runs = self.engine.read(move |store| {
            let with_source = |run: RunId| {
                // Which run has a source matters only if one goes.
                let header = if has_sources { store.header(run.num())? } else { None };
                Ok::<_, StoreError>((run, header.map(|header| header.hash)))
            };
            ids.into_iter().map(with_source).collect::<Result<Vec<_>, _>>()
        });
        let mut left = BTreeSet::new();
        for (ids, with) in steps(&runs.await?, &sources) {
            left.extend(self.erase_runs(ids, &with).await?);
            fault::point("engine.erase_runs");
        }
        for some in portions(rows) {
            let writes = some.into_iter().map(|row| Write::Erase(Box::new(row.clone()))).collect();
            self.engine.write(Vec::new(), writes).await?;
            fault::point("engine.erase_rows");
        }
        Ok(left)
    }

    /// Returns the number of other nodes of the cluster.
    fn other_nodes(self) -> u64 {
        let nodes = self.engine.shared().facts.get().map_or(0, |facts| facts.nodes().len());
        nodes.saturating_sub(1) as u64
    }

    /// Adds a line to the audit log: who, how much, and nothing of what it was.
    async fn note_erasure(
        self,
        caller: &Caller,
        erase: &Erase,
        found: &Found,
        outcome: &str,
    ) -> Result<(), EngineError> {
        let Traces { runs, rows, .. } = &found.traces;
        let run = match &erase.what {
            Erased::Runs(runs) => runs.first().map(ToString::to_string),
            Erased::Subject(_) | Erased::Match(_) => None,
        };
        let by = match &erase.what {
            Erased::Subject(_) => "subject",
            Erased::Runs(_) => "run",
            Erased::Match(_) => "match",
        };
        let line = AuditLine {
            boundary: "host".to_owned(),
            event: "erased".to_owned(),
            run,
            target: Some(format!("by {by}: {} runs, {} rows", runs.len(), rows.len())),
            principal: Some(caller.subject.clone()),
            outcome: Some(outcome.to_owned()),
            ..AuditLine::default()
        };
        let written = self.engine.shared().audit.write(Change::Audit(Box::new(line))).await;
        written.map_err(|failure| {
            EngineError::Store(StoreError::Database {
                context: "write the audit log".to_owned(),
                reason: failure.message,
            })
        })
    }
}

impl Engine {
    /// Removes the directories that deletions of an earlier host have left, and warns of an erasure
    /// that it has not completed.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written.
    pub async fn take_up_deletions(&self) -> Result<(), EngineError> {
        if let Err(error) = self.upkeep().sweep_directories().await {
            tracing::warn!(%error, "could not remove the directories of deleted runs");
        }
        if let Err(error) = self.upkeep().sweep_bundles().await {
            tracing::warn!(%error, "could not remove the files of deleted blueprints");
        }
        let mark = self.read(|store| store.meta(MARK)).await?.unwrap_or_default();
        let (since, runs) = marked(&mark);
        if since.is_empty() {
            return Ok(());
        }
        if !runs.is_empty() {
            let gone = self.read(move |store| unstored(store, runs)).await?;
            let left = self.upkeep().forget_files(gone).await;
            if left.is_empty() && !mark.contains(BEGUN) {
                let unmark = Write::PutMeta { key: MARK.to_owned(), value: String::new() };
                let unchanged = Check::MetaIs { key: MARK.to_owned(), value: Some(mark) };
                return self.write(vec![unchanged], vec![unmark]).await;
            }
        }
        tracing::warn!(
            since_ms = since,
            "an erasure was interrupted: do it again, with the same words, to complete it"
        );
        Ok(())
    }
}

/// Returns the mark of an act, with runs that have left directories.
fn mark_of(now_ms: u64, left: &BTreeSet<RunId>, is_begun: bool) -> String {
    let runs = left.iter().take(MOST_ERASED_RUNS).map(|run| format!(" {run}"));
    let begun = if is_begun { format!(" {BEGUN}") } else { String::new() };
    format!("{now_ms}{begun}{}", runs.collect::<String>())
}

/// Returns the parts of a mark: when the act began, which is empty without one, and the runs of which
/// it left directories.
fn marked(mark: &str) -> (String, BTreeSet<RunId>) {
    let (since, runs) = mark.split_once(' ').unwrap_or((mark, ""));
    (since.to_owned(), runs.split(' ').filter_map(|run| run.parse().ok()).collect())
}

fn in_work(rows: u64, reason: &str) -> Stays {
    Stays { place: "work".to_owned(), rows, reason: reason.to_owned() }
}

fn is_retired(store: &dyn Store, run: u64) -> Result<bool, StoreError> {
    let found = store.retired(run.saturating_sub(1), 1)?;
    Ok(found.first().is_some_and(|found| found.num == run))
}

fn why_it_stays(place: &str) -> &'static str {
    match place {
        "audit" => "lines of the audit log are never changed; they have names and no contents",
        "blueprints" => {
            "a source has it; once no run has it, archive and delete that blueprint if it was \
             published, and erase again"
        }
        _ => "the host itself needs it, such as the name of whoever archived a blueprint",
    }
}

fn bad(rule: &str) -> EngineError {
    EngineError::BadRequest(format!("erase: {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_the_runs_that_have_left_directories() {
        let runs = BTreeSet::from([RunId::new(1, 1_000), RunId::new(2, 1_000)]);
        for is_begun in [false, true] {
            let mark = mark_of(7, &runs, is_begun);
            assert_eq!(marked(&mark), ("7".to_owned(), runs.clone()));
            assert_eq!(mark.contains(BEGUN), is_begun);
        }
        assert_eq!(marked("7"), ("7".to_owned(), BTreeSet::new()));
        assert_eq!(marked(""), (String::new(), BTreeSet::new()));
    }
}
