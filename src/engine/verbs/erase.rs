//! Erasing: everything of a person, of runs, or that contains a text.
//!
//! First a dry run, which lists what would go; then the act, with the digest of that list. Runs go
//! as a whole. The act is marked in the store before its first deletion and unmarked after the
//! database was written anew, so a host that dies in between knows of it: the act is repeated, and
//! goes on where it ended. The audit log has a line for its begin and its end, with numbers only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::{
    engine::{Caller, Engine, EngineError, verbs::engine::UpkeepVerbs},
    fault,
    middleware::{AuditLine, Change, Keep as _},
    protocol::{Code, RunId},
    store::{
        Check, ErasureTarget, MOST_ERASED_RUNS, Store, StoreError, Trace, Traces, TracesInCopy,
        Write,
    },
    token::Verb,
};

/// The least and the greatest number of bytes of a text that is looked for.
const TEXT: std::ops::RangeInclusive<usize> = 4..=1_024;
/// The number of runs, and of other rows, that are removed in one commit.
const RUNS_AT_ONCE: usize = 32;
const ROWS_AT_ONCE: usize = 256;
/// The number of those rows that are found by a scan of a table: the one writer commits nothing else
/// meanwhile.
const SCANS_AT_ONCE: usize = 8;
/// The number of rows of long histories that are cleared in one commit.
const CLEARED: Write = Write::Tidy { rows: 2_048, pages: 0 };
/// The key of the mark of an act that is not complete.
const MARK: &str = "erase.unfinished";
/// The number of runs that a refusal names.
const NAMED: usize = 10;

/// The target of an erasure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Erased {
    /// Everything of a subject: the runs that it started, its tokens, sessions, answers.
    Subject(String),
    /// Runs, and those that they called, their forks and repetitions.
    Runs(Vec<RunId>),
    /// Everything that contains this text.
    Match(String),
}

/// A request to erase.
#[derive(Debug, Clone)]
pub struct Erase {
    /// The target.
    pub what: Erased,
    /// The digest of the dry run; absent for a dry run.
    pub digest: Option<String>,
}

/// The result of an erasure: the rows that it found or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EraseView {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// The digest of what was found. The act repeats it.
    pub digest: String,
    /// The runs, at most 2,000.
    pub runs: Vec<ErasedRun>,
    /// The number of entries of the runs.
    pub entries: u64,
    /// The number of files of the runs.
    pub files: u64,
    /// About how many bytes the runs take.
    pub bytes: u64,
    /// The numbers of rows outside of the runs: `state`, `links`, `kept`, `answers`, `sessions`,
    /// `tokens`, `sums`.
    pub rows: BTreeMap<String, u64>,
    /// Places that also hold the subject, the text or the runs, and that stay.
    pub stays: Vec<Stays>,
    /// Other runs that name the subject, such as those in which it answered a task; at most 100.
    #[schema(value_type = Vec<String>)]
    pub named_in: Vec<RunId>,
    /// Other databases in the data directory, and what each of them holds.
    pub copies: Vec<CopyView>,
    /// True if there is more: repeat the request.
    pub more: bool,
    /// True if an act was interrupted, and is completed by the next one.
    pub unfinished: bool,
}

/// A run that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErasedRun {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// `eligible` in a dry run, `not_ended` and `in_use` for a run that prevents the act, `done`.
    pub result: String,
    /// `called`, `fork` or `rerun` for a run that goes because it has the data of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descent: Option<String>,
    /// That other run, if it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub of: Option<RunId>,
}

/// A place whose rows stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stays {
    /// `audit`, `blueprints` or `host`.
    pub place: String,
    /// The number of rows.
    pub rows: u64,
    /// The reason, and what can be done.
    pub reason: String,
}

/// A copy of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopyView {
    /// The name of the file in the data directory.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of the erased runs that it has.
    pub runs: u64,
    /// The number of its rows with the subject or the text.
    pub rows: u64,
    /// The reason why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl From<TracesInCopy> for CopyView {
    fn from(it: TracesInCopy) -> Self {
        let TracesInCopy { file, bytes, runs, rows, problem } = it;
        Self { file, bytes, runs, rows, problem }
    }
}

/// The traces that were found, and the reasons that prevent their erasure.
struct Found {
    traces: Traces,
    /// Runs that have not ended, and runs that something open needs.
    blocked: BTreeMap<u64, Code>,
    named_in: Vec<RunId>,
    copies: Vec<TracesInCopy>,
    is_unfinished: bool,
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

impl Found {
    fn look(store: &dyn Store, target: &ErasureTarget) -> Result<Self, StoreError> {
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
        Ok(Self { traces, blocked, named_in, copies, is_unfinished })
    }

    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for run in &self.traces.runs {
            hasher.update(format!("\n{} {}", run.num, run.ended).as_bytes());
        }
        for row in &self.traces.rows {
            hasher.update(format!("\n{row:?}").as_bytes());
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    fn is_nothing(&self) -> bool {
        self.traces.runs.is_empty() && self.traces.rows.is_empty() && !self.is_unfinished
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
        let stays = |(place, rows): (&&str, &u64)| Stays {
            place: (*place).to_owned(),
            rows: *rows,
            reason: why_it_stays(place).to_owned(),
        };
        view.stays = self.traces.stays.iter().map(stays).collect();
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
    /// Erases, or reports what would be erased. The act goes on to its end also if the caller is
    /// gone.
    ///
    /// # Errors
    /// Fails when the caller lacks permission or would erase itself, when a run of it is open, when
    /// what is found is not what the digest is of, or the store cannot be written.
    pub async fn erase(self, caller: &Caller, erase: Erase) -> Result<EraseView, EngineError> {
        caller.grant.check(Verb::HostErase, &[])?;
        let target = erase.what.target()?;
        if let Erased::Subject(subject) = &erase.what
            && (*subject == caller.subject || subject == "host")
        {
            return Err(bad("a person is erased by somebody else: use the token of another admin"));
        }
        let (engine, caller) = (self.engine.clone(), caller.clone());
        let (tell, told) = oneshot::channel();
        self.engine.shared().tasks.spawn(async move {
            let result = engine.upkeep().carry_out(&caller, &erase, &target).await;
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
    ) -> Result<EraseView, EngineError> {
        // No copy of the database is made meanwhile.
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let wanted = target.clone();
        let found = self.engine.read(move |store| Found::look(store, &wanted)).await?;
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
        if !found.is_nothing() {
            self.remove(caller, erase, &found).await?;
        }
        Ok(found.view(digest, false))
    }

    async fn remove(
        self,
        caller: &Caller,
        erase: &Erase,
        found: &Found,
    ) -> Result<(), EngineError> {
        let Traces { runs, rows, more, .. } = &found.traces;
        let now_ms = self.engine.shared().clock.now_ms();
        self.note_erasure(caller, erase, found, "begun").await?;
        let live = vec![Check::TokenLive(caller.jti.clone())];
        let mark = Write::PutMeta { key: MARK.to_owned(), value: now_ms.to_string() };
        self.engine.write(live, vec![mark]).await?;
        fault::point("engine.erase_marked");
        // First, so that nothing new is written with them.
        for row in rows {
            if let Trace::Token(jti) = row {
                let owner = self.engine.dispatches().owner();
                self.engine.tokens().revoke(&owner, jti).await?;
            }
        }
        for some in runs.chunks(RUNS_AT_ONCE) {
            let ids = some.iter().map(|run| RunId::new(run.num, run.created_ms)).collect();
            self.erase_runs(ids).await?;
            fault::point("engine.erase_runs");
        }
        for some in portions(rows) {
            let writes = some.into_iter().map(|row| Write::Erase(Box::new(row.clone()))).collect();
            self.engine.write(Vec::new(), writes).await?;
            fault::point("engine.erase_rows");
        }
        if *more {
            // The next request goes on.
            return Ok(());
        }
        while self.engine.read(|store| store.upkeep().space()).await?.debris {
            self.engine.write(Vec::new(), vec![CLEARED]).await?;
        }
        self.engine.write(Vec::new(), vec![Write::Rewrite]).await?;
        fault::point("engine.erase_rewritten");
        let unmark = Write::PutMeta { key: MARK.to_owned(), value: String::new() };
        self.engine.write(Vec::new(), vec![unmark]).await?;
        self.note_erasure(caller, erase, found, "done").await
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
    /// Warns of an erasure that a host that died has not completed.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn warn_of_unfinished_erasure(&self) -> Result<(), EngineError> {
        let mark = self.read(|store| store.meta(MARK)).await?;
        if let Some(since) = mark.filter(|mark| !mark.is_empty()) {
            tracing::warn!(
                since_ms = since,
                "an erasure was interrupted: do it again, with the same words, to complete it"
            );
        }
        Ok(())
    }
}

/// Returns the rows of each commit, in their order.
fn portions<'a>(rows: impl IntoIterator<Item = &'a Trace>) -> Vec<Vec<&'a Trace>> {
    let (mut portions, mut scans) = (Vec::<Vec<_>>::new(), 0);
    for row in rows {
        let scan = usize::from(matches!(row, Trace::Sums(_) | Trace::Session(_)));
        match portions.last_mut() {
            Some(last) if last.len() < ROWS_AT_ONCE && scans + scan <= SCANS_AT_ONCE => {
                last.push(row);
                scans += scan;
            }
            Some(_) | None => {
                portions.push(vec![row]);
                scans = scan;
            }
        }
    }
    portions
}

fn is_retired(store: &dyn Store, run: u64) -> Result<bool, StoreError> {
    let found = store.retired(run.saturating_sub(1), 1)?;
    Ok(found.first().is_some_and(|found| found.num == run))
}

fn why_it_stays(place: &str) -> &'static str {
    match place {
        "audit" => "lines of the audit log are never changed; they have names and no contents",
        "blueprints" => "a source has it; archive and delete that blueprint, once no run has it",
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
    fn rows_that_need_a_scan_are_erased_a_few_at_a_time() {
        let sums = |n: usize| Trace::Sums(n.to_string());
        let session = |n: usize| Trace::Session(n.to_string());
        let token = |n: usize| Trace::Token(n.to_string());
        let sizes = |rows: &[Trace]| -> Vec<usize> {
            let portions = portions(rows);
            assert!(
                portions.iter().flatten().copied().eq(rows),
                "each row once, in the same order"
            );
            portions.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        let tokens: Vec<Trace> = (0..600).map(token).collect();
        assert_eq!(sizes(&tokens), [256, 256, 88]);
        let scans: Vec<Trace> = (0..9).map(sums).chain((0..8).map(session)).collect();
        assert_eq!(sizes(&scans), [8, 8, 1]);
        let mixed: Vec<Trace> = (0..100).flat_map(|n| [token(n), sums(n), token(n)]).collect();
        assert!(sizes(&mixed).iter().all(|size| *size <= 3 * 8 + 1), "{:?}", sizes(&mixed));
        let after: Vec<Trace> = (0..8).map(sums).chain((0..300).map(token)).collect();
        assert_eq!(sizes(&after), [256, 52]);
    }
}
