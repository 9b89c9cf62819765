//! Export and import of runs as documents.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{mpsc, oneshot};

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey, Made, rfc3339,
        turn::passage::Passage,
        verbs::engine::HistoryVerbs,
        verbs::{
            copy::{Copy, MOST_ENTRIES, MOST_LINKS, fold, linked},
            document::{Document, DocumentWriter, FORMAT, Limits, VERSION},
            document_lines::{
                DocumentLine, EvidenceLine, File, Head, LinkLine, Source, Value, scope_of,
            },
        },
    },
    flow::StateOp,
    journal::{Chain, Decision, Entry, Fact, RunState},
    protocol::{Code, Failure, MemoryLink, RunId},
    store::{
        ArtifactRow, BlueprintRow, EvidenceRow, Loaded, ScopeFilter, StateRow, Store, StoreError,
        Want, Write,
    },
    token::Verb,
};

/// The maximum size of a document that is imported, in bytes.
pub const DOCUMENT_BYTES: usize = 128 << 20;

/// The maximum number of entries of a document: an import adds two at most.
const ENTRIES: usize = MOST_ENTRIES - 2;

/// The maximum size of the last line, in bytes.
const SEAL_BYTES: usize = 128;

/// The number of lines that are buffered for the reader of a document.
const AHEAD: usize = 64;

/// The number of scopes of operators that are read at a time.
const SCOPES: usize = 100;

/// The maximum distance of an imported run number from the last one: numbers are finite.
const LEAP: u64 = 1 << 20;

/// A document, line by line.
#[derive(Debug)]
pub struct Export(mpsc::Receiver<Result<Vec<u8>, StoreError>>);

impl Export {
    /// Returns the next line, or `None` after the last one.
    ///
    /// # Errors
    /// Fails when a part of the run cannot be read; the document is incomplete then.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, StoreError>> {
        self.0.recv().await
    }
}

impl HistoryVerbs<'_> {
    /// Returns a run as a document: its blueprint, histories, state with its links, that of the
    /// operators within it, files and refused results. The histories, state and files of a run that
    /// goes on are those of one moment.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, it cannot be read, or its
    /// document would be larger than an import takes.
    pub async fn export(self, caller: &Caller, run: RunId) -> Result<Export, EngineError> {
        caller.may(Verb::RunExport, run)?;
        let header = self.engine.header(run).await?;
        let entries = usize::try_from(header.seq).unwrap_or(usize::MAX);
        fits(run, "its history has", (entries, ENTRIES, "entries"))?;
        let (to, lines) = mpsc::channel(AHEAD);
        let (tell, told) = oneshot::channel();
        let store = Arc::clone(&self.engine.shared().store);
        let passage = self.engine.stored_state().passage(&caller.subject);
        let at = rfc3339(self.engine.shared().clock.now_ms());
        // Not awaited: it ends with the last line, or when the receiver is dropped.
        drop(self.engine.shared().tasks.spawn_blocking(move || {
            // The receivers may have been dropped.
            let contents = match Contents::read(&*store, &passage, run, at) {
                Ok(contents) => contents,
                Err(error) => return drop(tell.send(Err(error))),
            };
            if tell.send(Ok(())).is_ok()
                && let Err(error) = contents.write(&*store, run, &to)
            {
                let _ = to.blocking_send(Err(error));
            }
        }));
        told.await.map_err(|_| EngineError::Stopping)??;
        Ok(Export(lines))
    }

    /// Imports a run from a document atomically. It keeps its id if its number was never used here,
    /// and gets a new one otherwise. A run that has not ended is paused.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the document is incomplete, of another version,
    /// or inconsistent.
    pub async fn import(
        self,
        caller: &Caller,
        document: impl AsRef<[u8]> + Send + 'static,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        caller.grant.check(Verb::RunImport, &[])?;
        // A document contains the source of its run.
        caller.grant.check(Verb::RunSource, &[])?;
        if let Some(made) = self.engine.repeated(caller, key.as_ref()).await? {
            let id = || EngineError::NotFound { what: "run", id: made.clone() };
            return self.engine.seen(caller, made.parse().map_err(|_| id())?).await;
        }
        self.engine.check_room()?;
        let _turn = self.engine.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let document = self.read_document(document).await?;
        let origin: RunId = document
            .head
            .run
            .parse()
            .map_err(|error| refused(format!("line 1 of the document: {error}")))?;
        let chain = fold(&document.entries).map_err(refused)?;
        let (started, created_ms) = chain.started().expect("a fold has a beginning");
        let Source { name, hash, bundle } = document.source;
        if started.hash != hash {
            return Err(refused(format!("its history is one of blueprint {}", started.hash)));
        }
        let store = &self.engine.shared().store;
        let keeps = origin.num() < store.last_run() + LEAP && store.reserve_run(origin.num());
        let num = if keeps { origin.num() } else { store.next_run() };
        let first_ms = document.entries.first().map_or(created_ms, |first| first.at_ms);
        let id = RunId::new(num, if keeps { origin.created_ms() } else { first_ms });
        let now_ms = self.engine.shared().clock.now_ms();

        let mut entries = document.entries;
        for entry in &mut entries {
            settle(entry, caller);
        }
        note_copy(&mut entries, &chain, &caller.subject, (origin, now_ms));
        let mut writes = vec![Write::PutBlueprint(BlueprintRow {
            hash,
            name,
            bundle: bundle.encode(),
            created_ms: now_ms,
            publisher: None,
        })];
        writes.extend(self.state_of(&caller.subject, id, document.state, document.links)?);
        for file in document.files {
            let (row, data) = file.open(num).map_err(refused)?;
            writes.push(Write::PutBlob { hash: row.hash.clone(), data });
            writes.push(Write::PutArtifact(row));
        }
        for EvidenceLine { step, attempt, at_ms, code, body } in document.evidence {
            writes.push(Write::PutEvidence(EvidenceRow {
                run: num,
                step,
                attempt,
                at_ms,
                code,
                body,
            }));
        }
        // Until the commit, nobody deletes the version that comes with it.
        let stored = self.engine.shared().programs.starts.read().await;
        let made = self.put_copy(caller, Copy { id, entries, writes, key }).await?;
        drop(stored);
        self.engine.seen(caller, made).await
    }

    async fn read_document(
        self,
        document: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Document, EngineError> {
        let limits = Limits {
            value: self.engine.shared().settings.limits.value,
            now_ms: self.engine.shared().clock.now_ms(),
        };
        let read = move || Document::read(document.as_ref(), limits);
        let read = self.engine.shared().tasks.spawn_blocking(read).await;
        read.map_err(|_| EngineError::Stopping)?.map_err(refused)
    }

    /// Returns the writes for the state of a document, in the run `run`. Stored values have their
    /// key already: the layers may refuse it and change its value.
    fn state_of(
        self,
        by: &str,
        run: RunId,
        values: Vec<Value>,
        links: Vec<LinkLine>,
    ) -> Result<Vec<Write>, EngineError> {
        let at_ms = self.engine.shared().clock.now_ms();
        let passage = self.engine.stored_state().passage(by);
        let mut writes = Vec::new();
        for Value { operator, key, value, expires_ms, hints } in values {
            let scope = scope_of(run, operator);
            let set = StateOp::Set { key: key.clone(), value, opts: None };
            let passed = passage.pass(&scope, &set).map_err(EngineError::Guarded)?;
            let StateOp::Set { value, .. } = passed else { continue };
            let value = value.as_str().to_owned();
            writes.push(Write::PutState { scope, key, value, hints, expires_ms, at_ms });
        }
        let mut scopes: BTreeMap<String, Vec<MemoryLink>> = BTreeMap::new();
        for line in links {
            let (scope, link) = line.open(run);
            let MemoryLink { from_key: key, to_key: to, relation, .. } = link.clone();
            let made = StateOp::Link { key, to, relation, metadata: None };
            passage.pass(&scope, &made).map_err(EngineError::Guarded)?;
            scopes.entry(scope).or_default().push(link);
        }
        for (scope, links) in scopes {
            writes.extend(linked(&scope, links, at_ms)?);
        }
        Ok(writes)
    }
}

fn refused(what: String) -> EngineError {
    EngineError::BadRequest(format!("import a run: {what}"))
}

/// Adds to a history that it is a copy; one that has not ended rests.
fn note_copy(entries: &mut Vec<Entry>, chain: &Chain, by: &str, (origin, now_ms): (RunId, u64)) {
    let copied = Decision::Copied { by: by.to_owned(), from: origin.to_string(), step: None };
    match chain.state() {
        RunState::Ended(_) => {
            // Nothing follows an end: it is noted just before.
            let at_ms = chain.last_ms();
            entries.insert(entries.len() - 1, Entry::new(0, at_ms, Fact::Decided(copied)));
        }
        RunState::Active | RunState::Compensating(_) => {
            let at_ms = chain.last_ms().max(now_ms);
            entries.push(Entry::new(0, at_ms, Fact::Decided(copied)));
            if chain.paused().is_none() {
                let reason = format!("imported from {origin}");
                let pause = Decision::Pause { by: by.to_owned(), reason };
                entries.push(Entry::new(0, at_ms, Fact::Decided(pause)));
            }
        }
    }
}

/// Detaches an entry from its origin: references to other objects have another meaning here.
fn settle(entry: &mut Entry, caller: &Caller) {
    match &mut entry.fact {
        Fact::RunStarted(started) => {
            started.grant = caller.grant.json();
            started.principal.clone_from(&caller.subject);
            (started.parent, started.depth) = (None, 0);
            (started.workdir, started.delegate) = (None, None);
        }
        Fact::SignalReceived(signal) => signal.sender = None,
        Fact::StepScheduled(_)
        | Fact::StepRecorded(..)
        | Fact::AttemptDelivered { .. }
        | Fact::AttemptClosed(_)
        | Fact::AttemptOpened(_)
        | Fact::StepEnded { .. }
        | Fact::Noted { .. }
        | Fact::SecretAccessed { .. }
        | Fact::Decided(_)
        | Fact::RunEnded(_) => {}
    }
}

/// The lines of a document. The bytes of its files are read when they are written.
#[derive(Default)]
struct Contents {
    scribe: DocumentWriter,
    /// The lines before the files, as they are written.
    before: Vec<Vec<u8>>,
    files: Vec<ArtifactRow>,
    after: Vec<DocumentLine>,
    /// The size of the document in bytes, with all of its lines.
    bytes: usize,
}

impl Contents {
    /// Reads a run, and refuses one whose document no import takes.
    fn read(
        store: &dyn Store,
        passage: &Passage,
        id: RunId,
        exported_at: String,
    ) -> Result<Self, EngineError> {
        let gone = |what: &str| StoreError::Damaged {
            what: format!("{what} of run {id}"),
            reason: "it is not there".to_owned(),
        };
        // In one snapshot: a state that is newer than the history would have the changes that the
        // copy makes again.
        let want = Want { rows: &|_| true, most: u64::MAX };
        let Some(Loaded { header, rows: Some(rows) }) = store.load(id.num(), &want)? else {
            return Err(gone("the history").into());
        };
        let start = rows.entries.first().map_or(1, |first| first.seq);
        // Histories that have ended do not change any more.
        let earlier = store.window(header.num, 0, start.saturating_sub(1))?;
        if start > 1 && earlier.is_empty() {
            return Err(gone("the beginning of the history").into());
        }
        fits(id, "its history has", (earlier.len() + rows.entries.len(), ENTRIES, "entries"))?;
        let head = Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            run: id.to_string(),
            exported_at,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let row = store.blueprint(&header.hash)?.ok_or_else(|| gone("the blueprint"))?;
        let bundle = row.open()?;
        let source = Source { name: row.name, hash: row.hash, bundle };
        let mut all = Self { bytes: SEAL_BYTES, ..Self::default() };
        all.add([DocumentLine::Run(head), DocumentLine::Blueprint(source)]);
        let entries = earlier.into_iter().chain(rows.entries);
        all.add(entries.map(|entry| DocumentLine::Entry(Box::new(entry))));
        let scope = format!("run:{id}");
        // The links may be newer than the history: to make one once more changes nothing.
        let links = store.links(&scope)?;
        fits(id, "its state has", (links.len(), MOST_LINKS, "links"))?;
        all.add(state_lines(passage, &scope, rows.state?, links)?);
        let mut filter = ScopeFilter {
            prefix: format!("operator:{id}:"),
            limit: SCOPES,
            ..ScopeFilter::default()
        };
        loop {
            let page = store.state_scopes(&filter)?;
            for it in &page {
                // Others change it too, beside the history.
                let (values, links) = (store.state(&it.scope)?, store.links(&it.scope)?);
                fits(id, "the state of an operator has", (links.len(), MOST_LINKS, "links"))?;
                all.add(state_lines(passage, &it.scope, values, links)?);
            }
            match page.into_iter().next_back() {
                Some(last) => filter.after = Some(last.scope),
                None => break,
            }
        }
        for row in &rows.files {
            let data = usize::try_from(row.size).unwrap_or(usize::MAX).div_ceil(3);
            let line = size(&DocumentLine::Artifact(File::new(row, &[])));
            all.bytes = all.bytes.saturating_add(line).saturating_add(data.saturating_mul(4));
        }
        all.files = rows.files;
        for row in store.evidence(header.num, None, usize::MAX)? {
            let EvidenceRow { step, attempt, at_ms, code, body, .. } = row;
            let line = DocumentLine::Evidence(EvidenceLine { step, attempt, at_ms, code, body });
            all.bytes = all.bytes.saturating_add(size(&line));
            if all.bytes <= DOCUMENT_BYTES {
                all.after.push(line);
            }
        }
        fits(id, "its document has", (all.bytes, DOCUMENT_BYTES, "bytes"))?;
        Ok(all)
    }

    /// Adds lines. Those beyond the limit are only counted.
    fn add(&mut self, lines: impl IntoIterator<Item = DocumentLine>) {
        for line in lines {
            let line = self.scribe.line(&line);
            self.bytes = self.bytes.saturating_add(line.len());
            if self.bytes <= DOCUMENT_BYTES {
                self.before.push(line);
            }
        }
    }

    /// Writes the document, line by line, until the receiver is dropped.
    fn write(
        self,
        store: &dyn Store,
        id: RunId,
        to: &mpsc::Sender<Result<Vec<u8>, StoreError>>,
    ) -> Result<(), StoreError> {
        let Self { mut scribe, before, files, after, .. } = self;
        let say = |line: Vec<u8>| to.blocking_send(Ok(line)).is_ok();
        if !before.into_iter().all(say) {
            return Ok(());
        }
        for row in files {
            let data = store.blob(&row.hash)?.ok_or_else(|| StoreError::Damaged {
                what: format!("a file of run {id}"),
                reason: "it is not there".to_owned(),
            })?;
            if !say(scribe.line(&DocumentLine::Artifact(File::new(&row, &data)))) {
                return Ok(());
            }
        }
        if after.iter().all(|line| say(scribe.line(line))) {
            // The receiver may have been dropped.
            let _ = to.blocking_send(Ok(scribe.seal()));
        }
        Ok(())
    }
}

/// Returns the size of a line in a document.
fn size(line: &DocumentLine) -> usize {
    serde_json::to_vec(line).expect("a line is plain data").len() + 1
}

/// Checks that an import takes a document with so many of something.
fn fits(run: RunId, has: &str, (many, most, of): (usize, usize, &str)) -> Result<(), EngineError> {
    if many <= most {
        return Ok(());
    }
    let message = format!(
        "export {run}: {has} {many} {of}, and `import` takes at most {most}; nothing was written. \
         Back up the whole host instead, with `moonswarm backup` or as its database is backed up"
    );
    Err(EngineError::Conflict { code: Code::HistoryTooLong, message })
}

/// Returns the lines of a scope of state, as the layers show it.
fn state_lines(
    passage: &Passage,
    scope: &str,
    rows: Vec<StateRow>,
    links: Vec<MemoryLink>,
) -> Result<Vec<DocumentLine>, StoreError> {
    let refused = |key: &str| {
        let key = key.to_owned();
        move |failure: Failure| StoreError::StateRefused { key, reason: failure.message }
    };
    let mut lines = Vec::with_capacity(rows.len() + links.len());
    for row in rows {
        let why = refused(&row.key);
        lines.push(DocumentLine::State(passage.show(row).map_err(why)?.into()));
    }
    for link in passage.show_links(scope, links).map_err(refused(""))? {
        lines.push(DocumentLine::Link(LinkLine::new(scope, link)));
    }
    Ok(lines)
}
