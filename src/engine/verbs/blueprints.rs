//! Blueprints: check, publish and look up.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::engine::{
    Caller, EngineError, IdempotencyKey, StatsItem, TriggerView, rfc3339,
    run::lookups::Publisher,
    shared::{faces::Face, host_log::HostFact, programs::Programs, request},
    verbs::engine::BlueprintVerbs,
};
use crate::{
    blueprint::{Bundle, Finding, ToolFace},
    fault,
    lua::Program,
    memory::Level,
    protocol::Json,
    store::{Check, Write},
    token::{Grant, Need, ScopeKind, Verb},
};

/// The maximum number of versions of one blueprint that are looked through.
const LISTED: usize = 10_000;

/// A blueprint version.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BlueprintView {
    /// Its name.
    pub name: String,
    /// The bundle's hash, in hex.
    pub hash: String,
    /// One line for a person.
    pub description: Option<String>,
    /// The blueprint as a tool for clients of MCP, if whoever published it may bring code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolFace>,
    /// The JSON Schema of its input.
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Json>,
    /// Its agents and their operators.
    pub agents: BTreeMap<String, String>,
    /// The triggers that start a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<TriggerView>,
    /// RFC 3339, UTC: when it was stored, or the name set.
    pub updated_at: String,
    /// RFC 3339, UTC: when it was archived. Nothing starts under its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_at: Option<String>,
    /// The runs that ended in the last 30 days; only where one blueprint is asked for, and only for
    /// tokens that may read every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<StatsItem>,
    /// The problem that keeps its file in the watched directory from being served. Only an answer
    /// for one blueprint has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl BlueprintVerbs<'_> {
    /// Returns every finding of a bundle; stores nothing.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn check(self, caller: &Caller, bundle: Bundle) -> Result<Vec<Finding>, EngineError> {
        caller.grant.check(Verb::BlueprintCheck, &[])?;
        let shared = Arc::clone(&self.engine.inner.shared);
        let tasks = shared.tasks.clone();
        let compile = tasks.spawn_blocking(move || shared.programs.compile(&bundle));
        Ok(match compile.await.map_err(|_| EngineError::Stopping)? {
            Ok((program, warnings)) => warnings.into_iter().chain(program.notes()).collect(),
            Err(findings) => findings,
        })
    }

    /// Compiles a bundle; stores nothing.
    pub(crate) async fn compiled(
        self,
        bundle: Bundle,
    ) -> Result<(Arc<Program>, Vec<Finding>), EngineError> {
        let shared = Arc::clone(&self.engine.inner.shared);
        if let Some(program) = shared.programs.kept(bundle.hash()) {
            return Ok((program, Vec::new()));
        }
        let tasks = shared.tasks.clone();
        let compile = tasks.spawn_blocking(move || shared.programs.compile(&bundle));
        let compiled = compile.await.map_err(|_| EngineError::Stopping)?;
        compiled.map_err(EngineError::Findings)
    }

    /// Stores a bundle that came with a request under its hash, permanently. No name changes.
    pub(crate) async fn keep_posted(self, program: &Arc<Program>) -> Result<(), EngineError> {
        let programs = &self.engine.shared().programs;
        if programs.stored(program.blueprint().hash()).is_some() {
            return Ok(());
        }
        let now_ms = self.engine.shared().clock.now_ms();
        fault::point("engine.blueprint_keep");
        self.engine.write(Vec::new(), vec![Programs::write_of(program, None, now_ms)]).await?;
        programs.mark_stored(program);
        Ok(())
    }

    /// Refuses a version that is not stored any more.
    pub(crate) async fn refuse_unstored(
        self,
        reference: &str,
        program: &Program,
    ) -> Result<(), EngineError> {
        let hash = program.blueprint().hash().to_owned();
        let row = self.engine.read(move |store| store.blueprint(&hash)).await?;
        let unknown = || EngineError::NotFound { what: "blueprint", id: reference.to_owned() };
        row.map(drop).ok_or_else(unknown)
    }

    /// Publishes a version under its name: its flows may call, signal and link what `grant` allows.
    /// `by` is the subject who publishes it, if it is not a file.
    pub(crate) async fn publish(
        self,
        program: &Arc<Program>,
        (grant, by): (Grant, Option<&str>),
        checks: Vec<Check>,
        more: Vec<Write>,
        now_ms: u64,
    ) -> Result<(), EngineError> {
        self.refuse_archived(program.blueprint().name())?;
        let hash = program.blueprint().hash().to_owned();
        let before = self.publisher_of(&hash).await?;
        // An earlier grant for the same source stays if it is wider.
        let grant = before.filter(|it| it.covers(&grant)).unwrap_or_else(|| Arc::new(grant));
        let name = program.blueprint().name().to_owned();
        let naming = Write::NameBlueprint { name: name.clone(), hash: hash.clone(), at_ms: now_ms };
        let facts = match self.stands_for(&name).await? {
            Some(before) if before == hash => Vec::new(),
            before => {
                let data = json!({ "hash": hash, "by": by, "before": before });
                vec![HostFact::new("blueprint.published", now_ms, data).of_blueprint(&name)]
            }
        };
        let mut writes = vec![Programs::write_of(program, Some(&grant), now_ms), naming];
        writes.extend(self.engine.shared().programs.face_of(program));
        writes.extend(more);
        fault::point("engine.blueprint_name");
        let shared = Arc::clone(&self.engine.inner.shared);
        self.engine
            .write_logged(checks, writes, facts, move |durable| {
                if durable {
                    shared.programs.published(&hash, grant);
                }
                shared.programs.moved(&name);
                shared.watches.moved();
            })
            .await?;
        self.engine.shared().programs.mark_stored(program);
        Ok(())
    }

    /// Returns the grant of the publisher of a version; `None` if it was never published.
    pub(crate) async fn publisher_of(self, hash: &str) -> Result<Publisher, EngineError> {
        let shared = Arc::clone(&self.engine.inner.shared);
        if let Some(known) = shared.programs.known_publisher(hash) {
            return Ok(known);
        }
        let (tasks, hash) = (shared.tasks.clone(), hash.to_owned());
        let find = tasks.spawn_blocking(move || shared.programs.publisher(&hash));
        Ok(find.await.map_err(|_| EngineError::Stopping)??)
    }

    /// Checks permission for a version: a published one by the scopes of its name; one that only
    /// came with a request by the permission to bring source code, or to read everything.
    ///
    /// # Errors
    /// Returns the refusal of the gate.
    pub(crate) async fn reach(
        self,
        caller: &Caller,
        verb: Verb,
        program: &Program,
    ) -> Result<(), EngineError> {
        let blueprint = program.blueprint();
        if self.publisher_of(blueprint.hash()).await?.is_some() {
            return Ok(caller.grant.check(verb, &[Need::Blueprint(blueprint.name())])?);
        }
        if verb == Verb::BlueprintRead {
            return Ok(caller.grant.check(verb, &[Need::Every(ScopeKind::Blueprint)])?);
        }
        caller.grant.check(verb, &[])?;
        Ok(caller.grant.check(Verb::RunSource, &[])?)
    }

    /// Publishes a version under `name`, with the caller's grant: its flows call, signal and link
    /// with that.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, the blueprint has errors, or it declares another
    /// name.
    pub async fn put_blueprint(
        self,
        caller: &Caller,
        name: String,
        bundle: Bundle,
        key: Option<IdempotencyKey>,
    ) -> Result<(BlueprintView, Vec<Finding>), EngineError> {
        caller.grant.check(Verb::BlueprintWrite, &[Need::Blueprint(&name)])?;
        if let Some(hash) = self.engine.repeated(caller, key.as_ref()).await? {
            let view = self.view_version(&name, &hash).await?;
            return Ok((view, Vec::new()));
        }
        let (program, warnings) = self.compiled(bundle).await?;
        let blueprint = program.blueprint();
        if blueprint.name() != name {
            return Err(EngineError::BadRequest(format!(
                "put blueprint {name}: it names itself {:?}; put it under that name",
                blueprint.name()
            )));
        }
        let now_ms = self.engine.shared().clock.now_ms();
        let hash = blueprint.hash().to_owned();
        let mut writes = Vec::new();
        let mut checks = vec![Check::TokenLive(caller.jti.clone())];
        let (check, write) = key.map(|key| key.keep(&caller.subject, hash, now_ms)).unzip();
        checks.extend(check);
        writes.extend(write);
        let publisher = (Grant::clone(&caller.grant), Some(caller.subject.as_str()));
        self.publish(&program, publisher, checks, writes, now_ms).await?;
        Ok((self.view(&Face::of(&program), now_ms).await?, warnings))
    }

    /// Returns the names, each with its current version.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn list(self, caller: &Caller) -> Result<Vec<BlueprintView>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Every(ScopeKind::Blueprint)])?;
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        let mut views = Vec::with_capacity(names.len());
        for (name, hash, at_ms) in names {
            views.push(self.view_stored(name, hash, at_ms).await);
        }
        Ok(views)
    }

    /// Returns the names that are tools, each with its current version.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn tools(self, caller: &Caller) -> Result<Vec<BlueprintView>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Every(ScopeKind::Blueprint)])?;
        let shared = Arc::clone(&self.engine.inner.shared);
        let names = match shared.programs.known_tools() {
            Some(names) => names,
            None => {
                // All of them on one thread: most are no tools, and each would be a detour.
                let tasks = shared.tasks.clone();
                let find = tasks.spawn_blocking(move || shared.programs.tools());
                find.await.map_err(|_| EngineError::Stopping)??
            }
        };
        let mut views = Vec::with_capacity(names.len());
        for (name, hash, at_ms) in names.iter() {
            views.push(self.view_stored(name.clone(), hash.clone(), *at_ms).await);
        }
        views.retain(|view| view.tool.is_some());
        Ok(views)
    }

    /// Returns a count that changes whenever a name is set, archived, restored or deleted.
    pub fn changes(self) -> watch::Receiver<u64> {
        self.engine.shared().programs.changes()
    }

    /// Returns the view of a stored version. One of an older release that does not compile any more
    /// is shown nevertheless.
    pub(crate) async fn view_stored(self, name: String, hash: String, at_ms: u64) -> BlueprintView {
        let Ok(face) = self.face(&name, &hash).await else {
            return bare(name, hash, at_ms);
        };
        let Ok(mut view) = self.view(&face, at_ms).await else {
            return bare(name, hash, at_ms);
        };
        self.engine.shared().watches.tell(&mut view, &face.on);
        view
    }

    /// Returns what a list shows of the version that a name stands for.
    pub(crate) async fn face(self, name: &str, hash: &str) -> Result<Arc<Face>, EngineError> {
        let shared = Arc::clone(&self.engine.inner.shared);
        if let Some(face) = shared.programs.known_face(hash) {
            return Ok(face);
        }
        let (tasks, name, hash) = (shared.tasks.clone(), name.to_owned(), hash.to_owned());
        let find = tasks.spawn_blocking(move || shared.programs.face(&name, &hash));
        let (face, write) = find.await.map_err(|_| EngineError::Stopping)??;
        if let Some(write) = write {
            // Without it the source is compiled again after the next start.
            let _ = self.engine.write(Vec::new(), vec![write]).await;
        }
        Ok(face)
    }

    /// Returns the names, each with its current version, and compiles at most `most` sources for that.
    /// The others have only their names and versions: also returns how many these are.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn list_soon(
        self,
        caller: &Caller,
        most: usize,
    ) -> Result<(Vec<BlueprintView>, usize), EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Every(ScopeKind::Blueprint)])?;
        let shared = Arc::clone(&self.engine.inner.shared);
        let tasks = shared.tasks.clone();
        let look = tasks.spawn_blocking(move || {
            let names = shared.store.blueprint_names()?;
            shared.programs.read_faces(&names)?;
            let kept = |(name, hash, at_ms): (String, String, u64)| {
                let is_kept = shared.programs.kept_face(&name, &hash)?.is_some();
                Ok((name, hash, at_ms, is_kept))
            };
            names.into_iter().map(kept).collect::<Result<Vec<_>, EngineError>>()
        });
        let names = look.await.map_err(|_| EngineError::Stopping)??;
        let (mut views, mut room, mut bares) = (Vec::with_capacity(names.len()), most, 0);
        for (name, hash, at_ms, is_kept) in names {
            if !is_kept && room == 0 {
                bares += 1;
                views.push(bare(name, hash, at_ms));
                continue;
            }
            room -= usize::from(!is_kept);
            views.push(self.view_stored(name, hash, at_ms).await);
        }
        Ok((views, bares))
    }

    /// Returns the version that `name` or `name@hash-prefix` refers to.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub async fn get(self, caller: &Caller, name: &str) -> Result<BlueprintView, EngineError> {
        let bare = name.split('@').next().unwrap_or(name);
        let program = self.resolved(caller, name).await?;
        let row = {
            let hash = program.blueprint().hash().to_owned();
            self.engine.read(move |store| store.blueprint(&hash)).await?
        };
        let view = self.view(&Face::of(&program), row.map_or(0, |row| row.created_ms)).await?;
        let mark = self.engine.shared().programs.archived(bare);
        let stats = self.stats_of(caller, bare).await;
        let problem = self.problem_of(bare);
        let archived_at = mark.map(|mark| rfc3339(mark.at_ms));
        Ok(BlueprintView { archived_at, stats, problem, ..view })
    }

    /// Returns the program that `name` or `name@hash-prefix` refers to, for a caller who may read it.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub(crate) async fn resolved(
        self,
        caller: &Caller,
        name: &str,
    ) -> Result<Arc<Program>, EngineError> {
        let bare = name.split('@').next().unwrap_or(name);
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(bare)])?;
        let shared = Arc::clone(&self.engine.inner.shared);
        let reference = name.to_owned();
        let tasks = shared.tasks.clone();
        let resolve = tasks.spawn_blocking(move || shared.programs.resolve(&reference, None));
        let resolved = resolve.await.map_err(|_| EngineError::Stopping)?;
        let program =
            resolved.map_err(|error| self.why_unnamed(caller, Verb::BlueprintRead, name, error))?;
        self.reach(caller, Verb::BlueprintRead, &program).await?;
        Ok(program)
    }

    /// Returns the source of one version, exactly as it was stored.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub async fn blueprint_source(
        self,
        caller: &Caller,
        name: &str,
        hash: &str,
    ) -> Result<Bundle, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(name)])?;
        let (wanted, prefix) = (name.to_owned(), hash.to_owned());
        let published = !caller.grant.scopes.cover(&Need::Every(ScopeKind::Blueprint));
        let row = self
            .engine
            .read(move |store| match store.blueprint_like(&wanted, &prefix, published)? {
                Some((hash, 1)) => store.blueprint(&hash),
                Some(_) | None => Ok(None),
            })
            .await?;
        let Some(row) = row else {
            return Err(EngineError::NotFound { what: "blueprint", id: format!("{name}@{hash}") });
        };
        Ok(row.open()?)
    }

    /// Returns the files of the blueprint that a caller tests: a stored version that it may read, or
    /// what it brings. Testing has no effects, so bringing takes no verb of its own.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such version, or the host has no memory
    /// left.
    pub async fn to_test(
        self,
        caller: &Caller,
        program: request::Program,
    ) -> Result<Bundle, EngineError> {
        caller.grant.check(Verb::BlueprintTest, &[])?;
        if self.engine.shared().memory.level() == Level::Full {
            return Err(self.engine.shared().no_room("run tests"));
        }
        match program {
            request::Program::Bundle(bundle) => Ok(bundle),
            request::Program::Named(name) => {
                let view = self.get(caller, &name).await?;
                self.blueprint_source(caller, &view.name, &view.hash).await
            }
        }
    }

    /// Returns the hashes of a blueprint's stored versions and the times at which they were stored, in
    /// Unix milliseconds, newest first. Versions that only came with a request to run them are left
    /// out.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn versions(
        self,
        caller: &Caller,
        name: &str,
    ) -> Result<Vec<(String, u64)>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(name)])?;
        let wanted = name.to_owned();
        let rows =
            self.engine.read(move |store| store.blueprint_list(&wanted, None, LISTED)).await?;
        let published = rows.into_iter().filter(|row| row.published);
        Ok(published.map(|row| (row.hash, row.created_ms)).collect())
    }

    pub(crate) async fn program_by(self, hash: String) -> Result<Arc<Program>, EngineError> {
        let shared = Arc::clone(&self.engine.inner.shared);
        let tasks = shared.tasks.clone();
        let find = tasks.spawn_blocking(move || shared.programs.by_hash(&hash));
        find.await.map_err(|_| EngineError::Stopping)?
    }

    async fn view_version(self, name: &str, hash: &str) -> Result<BlueprintView, EngineError> {
        let program = self.program_by(hash.to_owned()).await?;
        debug_assert_eq!(program.blueprint().name(), name, "a key belongs to one name");
        self.view(&Face::of(&program), self.engine.shared().clock.now_ms()).await
    }

    /// Returns a version that was stored at a time. It is a tool only if its publisher may bring
    /// code: what a model has saved with a narrow token describes itself to no other model.
    async fn view(self, face: &Face, at_ms: u64) -> Result<BlueprintView, EngineError> {
        let mut view = view_of(face, at_ms, self.engine.shared().clock.now_ms());
        if let Some(tool) = &face.tool {
            let publisher = self.publisher_of(&face.hash).await?;
            let may = publisher.is_some_and(|it| it.check(Verb::RunSource, &[]).is_ok());
            view.tool = may.then(|| tool.clone());
        }
        Ok(view)
    }
}

fn view_of(face: &Face, at_ms: u64, now_ms: u64) -> BlueprintView {
    BlueprintView {
        description: face.description.clone(),
        input: face.input.clone(),
        agents: face.agents.clone(),
        on: face.on.iter().map(|trigger| TriggerView::of(trigger, now_ms)).collect(),
        ..bare(face.name.clone(), face.hash.clone(), at_ms)
    }
}

fn bare(name: String, hash: String, at_ms: u64) -> BlueprintView {
    BlueprintView {
        name,
        hash,
        description: None,
        tool: None,
        input: None,
        agents: BTreeMap::new(),
        on: Vec::new(),
        updated_at: rfc3339(at_ms),
        archived_at: None,
        stats: None,
        problem: None,
    }
}
