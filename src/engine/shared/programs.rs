//! Compiled blueprints by hash, and the names that refer to them.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hashlink::LruCache;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::engine::{
    Checked, EngineError,
    run::lookups::Publisher,
    shared::{
        archive::{Archive, Archived, KEY as ARCHIVED},
        faces::{self, Face},
    },
};
use crate::{
    blueprint::{Bundle, Edition, Finding},
    lua::{Limits, Program},
    operator::Registry,
    protocol::{Code, Json},
    store::{BlueprintRow, RunFilter, RunStatus, Store, StoreError, Write},
    token::Grant,
};

/// The shown length of a hash.
const SHORT: usize = 12;
/// The maximum number of programs that stay compiled.
const KEPT: usize = 256;
/// The maximum number of versions that are known to be stored, or whose publisher is cached.
const KEPT_FACTS: usize = 4_096;
/// The maximum number of versions whose facts for lists are cached.
const KEPT_FACES: usize = 2_048;
/// The number of those that are read with one look at the store.
const FACES_AT_ONCE: usize = 256;
/// The number of waiting runs whose programs are compiled ahead; the second limits the programs.
const AHEAD_RUNS: usize = 256;
const AHEAD: usize = 16;

/// A cache of the stored blueprints.
pub(crate) struct Programs {
    store: Arc<dyn Store>,
    registry: Registry,
    limits: Limits,
    compiled: Mutex<HashMap<String, Arc<Program>>>,
    faces: Mutex<LruCache<String, Arc<Face>>>,
    /// The names whose versions are tools, and the count of changes at which they were.
    tools: Mutex<Option<(u64, Named)>>,
    /// The mark of stored faces.
    mark: String,
    stored: Mutex<LruCache<String, ()>>,
    names: Mutex<Names>,
    /// Counts the changes of names, for those who follow them.
    changes: watch::Sender<u64>,
    publishers: Mutex<LruCache<String, Publisher>>,
    /// The problems of files in the watched directory.
    problems: Mutex<Vec<BlueprintProblem>>,
    archive: Mutex<Archive>,
    /// Held for reading by each start, from its look at what is stored to its commit; for writing
    /// by whoever deletes blueprints or erases runs.
    pub(crate) starts: Arc<tokio::sync::RwLock<()>>,
    /// The number of deletions so far, of versions and of erased runs.
    erasures: AtomicU64,
}

/// A file of the watched directory that is no blueprint, or whose last version is not served.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct BlueprintProblem {
    /// The file, relative to the watched directory.
    pub file: String,
    /// The blueprint's name; the file's, if no version of it ever said another.
    pub name: String,
    /// The problem, in one line.
    pub message: String,
    /// The errors, in the order of their places.
    #[schema(value_type = Vec<Object>)]
    pub findings: Vec<Finding>,
}

/// Names, each with the hash of its version and when it was set.
pub(crate) type Named = Arc<Vec<(String, String, u64)>>;

/// The hashes of names when they were last read.
struct Names {
    hashes: LruCache<String, String>,
    /// Counts the changes of names, so that a value that was read before a change is not cached
    /// after it.
    moves: u64,
}

/// Returns the name of a reference: `name` or `name@hash-prefix`.
fn name_of(reference: &str) -> &str {
    reference.split_once('@').map_or(reference, |(name, _)| name)
}

/// Returns true if a reference stands for the caller's own version, of this name and hash.
fn is_own(reference: &str, own: Option<&(String, String)>) -> bool {
    let (name, prefix) = reference.split_once('@').unwrap_or((reference, ""));
    own.is_some_and(|(own, hash)| own == name && hash.starts_with(prefix))
}

impl Programs {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        registry: Registry,
        limits: Limits,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            archive: Mutex::new(Archive::read(store.meta(ARCHIVED)?)),
            starts: Arc::default(),
            erasures: AtomicU64::new(0),
            mark: faces::mark(registry.names()),
            store,
            registry,
            limits,
            compiled: Mutex::new(HashMap::new()),
            faces: Mutex::new(LruCache::new(KEPT_FACES)),
            tools: Mutex::default(),
            stored: Mutex::new(LruCache::new(KEPT_FACTS)),
            names: Mutex::new(Names { hashes: LruCache::new(KEPT), moves: 0 }),
            changes: watch::Sender::new(0),
            publishers: Mutex::new(LruCache::new(KEPT_FACTS)),
            problems: Mutex::default(),
        })
    }

    /// Returns the archived blueprints.
    pub(crate) fn archive(&self) -> MutexGuard<'_, Archive> {
        self.archive.lock()
    }

    /// Returns the mark of an archived blueprint.
    pub(crate) fn archived(&self, name: &str) -> Option<Archived> {
        self.archive.lock().names.get(name).cloned()
    }

    /// Returns an error if a blueprint is archived.
    pub(crate) fn refuse_archived(&self, name: &str) -> Result<(), EngineError> {
        if self.archived(name).is_none() {
            return Ok(());
        }
        Err(EngineError::Conflict {
            code: Code::BlueprintArchived,
            message: format!(
                "blueprint {name} is archived; `moonswarm blueprints restore {name}` restores it"
            ),
        })
    }

    /// Returns the number of deletions so far. A caller that holds `starts`, and gets the number of
    /// before it looked something up, knows that this is still stored.
    pub(crate) fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::Acquire)
    }

    /// Counts a deletion that is stored, or may be.
    pub(crate) fn note_erasure(&self) {
        self.erasures.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops what is cached of the versions of a name that were deleted.
    pub(crate) fn forget(&self, name: &str) {
        self.note_erasure();
        self.compiled.lock().retain(|_, program| program.blueprint().name() != name);
        // What is left of these is only read again.
        self.stored.lock().clear();
        self.publishers.lock().clear();
        self.moved(name);
    }

    /// As [`Programs::resolve`], for a run that starts another one: what is archived does not start,
    /// unless the caller is a run of it.
    pub(crate) fn called(
        &self,
        reference: &str,
        own: Option<(String, String)>,
    ) -> Result<(Arc<Program>, Publisher), EngineError> {
        if !is_own(reference, own.as_ref()) {
            self.refuse_archived(name_of(reference))?;
        }
        let program = self.resolve(reference, own)?;
        let publisher = self.publisher(program.blueprint().hash())?;
        Ok((program, publisher))
    }

    /// As [`Programs::called`], without reading the store; nothing if the program or its publisher is
    /// not in memory.
    pub(crate) fn known_called(
        &self,
        reference: &str,
        own: Option<(String, String)>,
    ) -> Option<Result<(Arc<Program>, Publisher), EngineError>> {
        let program = match own.filter(|own| is_own(reference, Some(own))) {
            Some((_, hash)) => self.kept(&hash)?,
            None => match self.refuse_archived(name_of(reference)) {
                Err(refusal) => return Some(Err(refusal)),
                Ok(()) => self.known(reference)?,
            },
        };
        let publisher = self.known_publisher(program.blueprint().hash())?;
        Some(Ok((program, publisher)))
    }

    /// Returns the problems of files in the watched directory, by file.
    pub(crate) fn problems(&self) -> MutexGuard<'_, Vec<BlueprintProblem>> {
        self.problems.lock()
    }

    /// Returns the publisher of a version, if it is cached.
    pub(crate) fn known_publisher(&self, hash: &str) -> Option<Publisher> {
        self.publishers.lock().get(hash).cloned()
    }

    /// Returns the publisher of a version; none for a version that is not stored.
    pub(crate) fn publisher(&self, hash: &str) -> Result<Publisher, StoreError> {
        if let Some(known) = self.known_publisher(hash) {
            return Ok(known);
        }
        let row = self.store.blueprint(hash)?;
        Ok(self.keep_publisher(hash, row.and_then(|row| row.publisher)))
    }

    /// Caches the publisher of a stored version, unless it was published in the meantime.
    fn keep_publisher(&self, hash: &str, stored: Option<String>) -> Publisher {
        let grant = stored
            .map(|text| Arc::new(crate::engine::run::values::grant_of(&Json::from_trusted(text))));
        self.publishers.lock().entry(hash.to_owned()).or_insert(grant).clone()
    }

    /// Caches the publisher of a version.
    pub(crate) fn published(&self, hash: &str, grant: Arc<Grant>) {
        self.publishers.lock().insert(hash.to_owned(), Some(grant));
    }

    /// Returns the limits of every sandbox.
    pub(crate) fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// Compiles a bundle; returns the warnings, or every finding if one is an error.
    pub(crate) fn compile(
        &self,
        bundle: &Bundle,
    ) -> Result<(Arc<Program>, Vec<Finding>), Vec<Finding>> {
        if let Some(program) = self.kept(bundle.hash()) {
            return Ok((program, Vec::new()));
        }
        let (program, warnings) = Program::compile(bundle.clone(), &self.registry, &self.limits)?;
        let program = Arc::new(program);
        self.keep(&program);
        Ok((program, warnings))
    }

    /// Returns a compiled version that is known to be stored.
    pub(crate) fn stored(&self, hash: &str) -> Option<Arc<Program>> {
        let stored = self.stored.lock().get(hash).is_some();
        if stored { self.kept(hash) } else { None }
    }

    /// Records that a version is stored.
    pub(crate) fn mark_stored(&self, program: &Program) {
        let hash = program.blueprint().hash().to_owned();
        self.stored.lock().insert(hash, ());
    }

    /// Returns the compiled version of a name or a whole `name@hash`, without reading the store.
    pub(crate) fn known(&self, reference: &str) -> Option<Arc<Program>> {
        match reference.split_once('@') {
            Some((name, hash)) => {
                self.stored(hash).filter(|program| program.blueprint().name() == name)
            }
            None => self.kept(self.names.lock().hashes.get(reference)?),
        }
    }

    /// Drops the cached hash of a name: a write has changed it, or has tried to.
    pub(crate) fn moved(&self, name: &str) {
        let mut names = self.names.lock();
        names.moves += 1;
        names.hashes.remove(name);
        self.changes.send_replace(names.moves);
    }

    /// Returns the count of the changes of names.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn named(&self, name: &str) -> Result<Option<String>, EngineError> {
        let before = self.names.lock().moves;
        let hash = self.store.blueprint_named(name)?;
        let mut names = self.names.lock();
        if let Some(hash) = &hash
            && names.moves == before
        {
            names.hashes.insert(name.to_owned(), hash.clone());
        }
        Ok(hash)
    }

    /// Returns the version that is stored under a hash.
    pub(crate) fn by_hash(&self, hash: &str) -> Result<Arc<Program>, EngineError> {
        if let Some(program) = self.kept(hash) {
            return Ok(program);
        }
        let row = self.store.blueprint(hash)?.ok_or_else(|| unknown(hash))?;
        self.decode(&row)
    }

    /// Returns what a list shows of a version, if it is cached.
    pub(crate) fn known_face(&self, hash: &str) -> Option<Arc<Face>> {
        self.faces.lock().get(hash).map(Arc::clone)
    }

    /// Returns what a list shows of the version that a name stands for, from memory or from the store;
    /// `None` if the source has to be compiled for that.
    pub(crate) fn kept_face(
        &self,
        name: &str,
        hash: &str,
    ) -> Result<Option<Arc<Face>>, EngineError> {
        if let Some(face) = self.known_face(hash) {
            return Ok(Some(face));
        }
        let stored = self.store.meta(&faces::key_of(name))?;
        let face = stored.and_then(|record| Face::read(&record, &self.mark, hash));
        if let Some(face) = &face {
            self.faces.lock().insert(hash.to_owned(), Arc::clone(face));
        }
        Ok(face)
    }

    /// Returns what a list shows of the version that a name stands for. If its source was compiled for
    /// that, also returns the write after which the next start need not.
    pub(crate) fn face(
        &self,
        name: &str,
        hash: &str,
    ) -> Result<(Arc<Face>, Option<Write>), EngineError> {
        if let Some(face) = self.kept_face(name, hash)? {
            return Ok((face, None));
        }
        let program = self.by_hash(hash)?;
        let write = self.face_of(&program).filter(|_| program.blueprint().name() == name);
        Ok((Face::of(&program), write))
    }

    /// Reads what lists show of the current versions, until canceled, so that the first list after a
    /// start is as fast as the next one. Whatever is not stored is left to the list.
    pub(crate) fn read_faces_ahead(&self, stopping: &CancellationToken) -> Result<(), EngineError> {
        let names = self.store.blueprint_names()?;
        for part in names[..names.len().min(KEPT_FACES)].chunks(FACES_AT_ONCE) {
            if stopping.is_cancelled() {
                break;
            }
            self.read_faces(part)?;
            for (_, hash, _) in part {
                if self.known_face(hash).is_some_and(|face| face.tool.is_some()) {
                    self.publisher(hash)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the names whose versions are tools, if no name has changed since they were read.
    pub(crate) fn known_tools(&self) -> Option<Named> {
        let moves = self.names.lock().moves;
        let tools = self.tools.lock();
        tools.as_ref().filter(|(at, _)| *at == moves).map(|(_, names)| Arc::clone(names))
    }

    /// Returns the names whose versions are tools, from memory or from the store. A version that
    /// cannot be read is left out.
    pub(crate) fn tools(&self) -> Result<Named, EngineError> {
        if let Some(known) = self.known_tools() {
            return Ok(known);
        }
        let moves = self.names.lock().moves;
        let mut names = self.store.blueprint_names()?;
        // What it cannot read is read by itself below.
        let _ = self.read_faces(&names);
        let mut is_whole = true;
        names.retain(|(name, hash, _)| match self.face(name, hash) {
            Ok((face, _)) => face.tool.is_some(),
            Err(error) => {
                // Bad source stays as it is; a store that is away comes back.
                is_whole &= !matches!(error, EngineError::Store(_));
                false
            }
        });
        let names = Arc::new(names);
        if is_whole {
            *self.tools.lock() = Some((moves, Arc::clone(&names)));
        }
        Ok(names)
    }

    /// Reads what lists show of some names' versions, as far as it is stored and not in memory yet:
    /// many with one look at the store.
    pub(crate) fn read_faces(&self, names: &[(String, String, u64)]) -> Result<(), EngineError> {
        let unknown: Vec<_> = {
            let faces = self.faces.lock();
            names.iter().filter(|(_, hash, _)| !faces.contains_key(hash)).take(KEPT_FACES).collect()
        };
        for part in unknown.chunks(FACES_AT_ONCE) {
            let keys: Vec<_> = part.iter().map(|(name, ..)| faces::key_of(name)).collect();
            for ((_, hash, _), record) in part.iter().zip(self.store.metas(&keys)?) {
                let face = record.and_then(|record| Face::read(&record, &self.mark, hash));
                if let Some(face) = face {
                    self.faces.lock().insert(hash.clone(), face);
                }
            }
        }
        Ok(())
    }

    /// Returns the write of what a list shows of a program, if it is stored.
    pub(crate) fn face_of(&self, program: &Program) -> Option<Write> {
        let face = Face::of(program);
        let value = face.record(&self.mark)?;
        Some(Write::PutMeta { key: faces::key_of(&face.name), value })
    }

    /// Compiles the programs of the newest waiting runs, until canceled, so that the first of them
    /// to continue after a start finds its program ready.
    pub(crate) fn compile_ahead(&self, stopping: &CancellationToken) -> Result<(), EngineError> {
        let filter = RunFilter {
            status: vec![RunStatus::Waiting],
            limit: AHEAD_RUNS,
            ..RunFilter::default()
        };
        let mut seen = HashSet::new();
        for header in self.store.headers(&filter)? {
            if seen.len() == AHEAD || stopping.is_cancelled() {
                break;
            }
            if seen.insert(header.hash.clone())
                // The runs of a program that does not compile any more report the error themselves.
                && let Err(error) = self.by_hash(&header.hash)
            {
                tracing::debug!(hash = header.hash, %error, "compile ahead");
            }
        }
        Ok(())
    }

    /// Returns the version that `name` or `name@hash-prefix` refers to now. `own` is the caller's
    /// (name, hash): a blueprint that was started from a file may call itself although its name was
    /// never set.
    pub(crate) fn resolve(
        &self,
        reference: &str,
        own: Option<(String, String)>,
    ) -> Result<Arc<Program>, EngineError> {
        let (name, prefix) = match reference.split_once('@') {
            Some((name, prefix)) => (name, Some(prefix)),
            None => (reference, None),
        };
        if let Some((_, own_hash)) = own.filter(|own| is_own(reference, Some(own))) {
            return self.by_hash(&own_hash);
        }
        let hash = match prefix {
            None => match self.named(name)? {
                Some(hash) => hash,
                None => match self.archived(name) {
                    Some(mark) => mark.hash,
                    None => return Err(self.unnamed(name)?),
                },
            },
            Some(prefix) => {
                // Published versions take precedence over those that merely declare the name.
                let found = match self.store.blueprint_like(name, prefix, true)? {
                    None => self.store.blueprint_like(name, prefix, false)?,
                    published => published,
                };
                match found {
                    None => return Err(unknown(reference)),
                    Some((hash, 1)) => hash,
                    Some((_, count)) => {
                        return Err(EngineError::BadRequest(format!(
                            "find blueprint {reference}: {count} versions begin so; give more of the \
                             hash"
                        )));
                    }
                }
            }
        };
        self.by_hash(&hash)
    }

    /// Returns the reason why a name stands for nothing: there is none, or it was archived.
    fn unnamed(&self, name: &str) -> Result<EngineError, EngineError> {
        Ok(match self.store.last_published(name)? {
            None => unknown(name),
            Some(hash) => {
                let hash = &hash[..SHORT.min(hash.len())];
                unknown(&format!("{name}: its file was removed; {name}@{hash} is its last version"))
            }
        })
    }

    /// Returns the write of a version, with the grant of its publisher if it is published.
    pub(crate) fn write_of(program: &Program, publisher: Option<&Grant>, now_ms: u64) -> Write {
        let blueprint = program.blueprint();
        Write::PutBlueprint(BlueprintRow {
            hash: blueprint.hash().to_owned(),
            name: blueprint.name().to_owned(),
            bundle: blueprint.bundle().encode(),
            created_ms: now_ms,
            publisher: publisher
                .map(|grant| serde_json::to_string(grant).expect("a grant is plain data")),
        })
    }

    fn decode(&self, row: &BlueprintRow) -> Result<Arc<Program>, EngineError> {
        let (program, _) = self.compile(&row.open()?).map_err(EngineError::Findings)?;
        // A call needs both: one read serves.
        self.keep_publisher(&row.hash, row.publisher.clone());
        Ok(program)
    }

    /// Returns the compiled version, if it is cached.
    pub(crate) fn kept(&self, hash: &str) -> Option<Arc<Program>> {
        self.compiled.lock().get(hash).map(Arc::clone)
    }

    fn keep(&self, program: &Arc<Program>) {
        let mut compiled = self.compiled.lock();
        if compiled.len() >= KEPT {
            // A version that a run uses is held by the run: only the cache entry is dropped.
            compiled.retain(|_, program| Arc::strong_count(program) > 1);
        }
        compiled.insert(program.blueprint().hash().to_owned(), Arc::clone(program));
        drop(compiled);
        self.faces.lock().insert(program.blueprint().hash().to_owned(), Face::of(program));
    }
}

/// Returns the input of a run, with its defaults; null counts as an empty object.
pub(crate) fn accept_input(program: &Program, input: &Json) -> Result<Json, EngineError> {
    let schema = program.blueprint().input();
    if schema.is_any() {
        let none = input.is_null() && program.source().edition() >= Edition::Two;
        return Ok(if none { Json::from(&serde_json::json!({})) } else { input.clone() });
    }
    let value = match input.to_value() {
        serde_json::Value::Null => serde_json::json!({}),
        value => value,
    };
    match schema.accept(value) {
        Ok(value) => Ok(value.into()),
        Err(violations) => {
            let violations = violations.into_iter().map(crate::engine::view::breach).collect();
            Err(EngineError::Invalid { what: Checked::Input, violations })
        }
    }
}

fn unknown(reference: &str) -> EngineError {
    EngineError::NotFound { what: "blueprint", id: reference.to_owned() }
}
