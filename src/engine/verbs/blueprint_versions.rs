//! The versions of a blueprint: which there are, what each looks like as a graph, and how two differ.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    blueprint::{
        AgentChange, FileChange, GraphNode, changed_agents, changed_files, changed_parts,
        graph_nodes,
    },
    engine::{
        Caller, EngineError, Page, StatsAsk, StatsBy, StatsItem, rfc3339,
        verbs::engine::BlueprintVerbs,
    },
    token::{Need, ScopeKind, Verb},
};

/// A stored version of a blueprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// The bundle's hash, in hex.
    pub hash: String,
    /// RFC 3339, UTC: when it was first stored.
    pub stored_at: String,
    /// True if the name stands for it now.
    pub current: bool,
    /// False if it only came with a request to run it.
    pub published: bool,
}

/// The static graph of a blueprint's flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GraphView {
    /// The blueprint's name.
    pub name: String,
    /// The bundle's hash, in hex.
    pub hash: String,
    /// The file that the lines are of.
    pub file: String,
    /// True if the flow is a table, whose graph is exact. That of a function shows the calls of `ctx` as
    /// they are written.
    pub exact: bool,
    /// The nodes, the outermost first.
    pub nodes: Vec<GraphNode>,
    /// True if there are more nodes than these.
    pub partial: bool,
}

/// The difference of two versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlueprintDiff {
    /// The blueprint's name.
    pub name: String,
    /// The hash of the first version.
    pub from: String,
    /// The hash of the second version.
    pub to: String,
    /// The files that differ, by path.
    pub files: Vec<FileChange>,
    /// The agents that differ, by name.
    pub agents: Vec<AgentChange>,
    /// The other declarations that differ: `input`, `on`, `budget`, …
    pub parts: Vec<String>,
    /// False if one of the versions does not compile any more: only files are compared then.
    pub compiles: bool,
}

impl BlueprintVerbs<'_> {
    /// Returns the stored versions of a blueprint, newest first: those after `after`, as `next_cursor`
    /// gave it. Versions that only came with a request to run them are shown to callers who may read
    /// every blueprint.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such blueprint, or the cursor is not one of
    /// this list.
    pub async fn list_versions(
        self,
        caller: &Caller,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<VersionView>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(name)])?;
        let every = caller.grant.scopes.cover(&Need::Every(ScopeKind::Blueprint));
        let current = self.stands_for(name).await?;
        let mut after = after.map(read_cursor).transpose()?;
        let is_first = after.is_none();
        let mut items = Vec::new();
        let mut next_cursor = None;
        loop {
            let (wanted, from) = (name.to_owned(), after.clone());
            let rows = self
                .engine
                .read(move |store| {
                    let from = from.as_ref().map(|(at_ms, hash)| (*at_ms, hash.as_str()));
                    store.blueprint_list(&wanted, from, limit + 1)
                })
                .await?;
            let is_last = rows.len() <= limit;
            for row in rows {
                if !row.published && !every {
                    after = Some((row.created_ms, row.hash));
                    continue;
                }
                if items.len() == limit {
                    next_cursor = after.as_ref().map(|(at_ms, hash)| format!("{at_ms}.{hash}"));
                    break;
                }
                items.push(VersionView {
                    stored_at: rfc3339(row.created_ms),
                    current: current.as_ref() == Some(&row.hash),
                    published: row.published,
                    hash: row.hash.clone(),
                });
                after = Some((row.created_ms, row.hash));
            }
            if is_last || next_cursor.is_some() {
                break;
            }
        }
        if items.is_empty() && is_first {
            return Err(EngineError::NotFound { what: "blueprint", id: name.to_owned() });
        }
        Ok(Page { items, next_cursor })
    }

    /// Returns the graph of what `name` or `name@hash-prefix` refers to.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub async fn graph(self, caller: &Caller, name: &str) -> Result<GraphView, EngineError> {
        let program = self.resolved(caller, name).await?;
        let draw = move || {
            let blueprint = program.blueprint();
            let (nodes, partial) = graph_nodes(blueprint);
            GraphView {
                name: blueprint.name().to_owned(),
                hash: blueprint.hash().to_owned(),
                file: blueprint.bundle().entry().to_owned(),
                exact: blueprint.definition().flow.is_some(),
                nodes,
                partial,
            }
        };
        self.engine.shared().tasks.spawn_blocking(draw).await.map_err(|_| EngineError::Stopping)
    }

    /// Compares two versions: `to`, by default the one that the name stands for, with `from`, by
    /// default the one before it. Hashes may be the beginnings of such.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such version.
    pub async fn diff(
        self,
        caller: &Caller,
        name: &str,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<BlueprintDiff, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(name)])?;
        let missing = |id: String| EngineError::NotFound { what: "blueprint", id };
        let to = match to {
            Some(to) => self.blueprint_source(caller, name, to).await?,
            None => {
                let hash = self.stands_for(name).await?.ok_or_else(|| missing(name.to_owned()))?;
                self.blueprint_source(caller, name, &hash).await?
            }
        };
        let from = match from {
            Some(from) => self.blueprint_source(caller, name, from).await?,
            None => {
                let hash = self.version_before(caller, name, to.hash()).await?;
                let hash = hash.ok_or_else(|| missing(format!("{name} before {}", to.hash())))?;
                self.blueprint_source(caller, name, &hash).await?
            }
        };
        let (before, after) = (self.compiled(from.clone()).await, self.compiled(to.clone()).await);
        let name = name.to_owned();
        let compare = move || {
            let mut diff = BlueprintDiff {
                name,
                from: from.hash().to_owned(),
                to: to.hash().to_owned(),
                files: changed_files(&from, &to),
                agents: Vec::new(),
                parts: Vec::new(),
                compiles: false,
            };
            if let (Ok((before, _)), Ok((after, _))) = (before, after) {
                let (before, after) =
                    (before.blueprint().definition(), after.blueprint().definition());
                diff.agents = changed_agents(before, after);
                diff.parts = changed_parts(before, after);
                diff.compiles = true;
            }
            diff
        };
        let tasks = self.engine.shared().tasks.clone();
        tasks.spawn_blocking(compare).await.map_err(|_| EngineError::Stopping)
    }

    /// Returns the version that was stored before another.
    async fn version_before(
        self,
        caller: &Caller,
        name: &str,
        hash: &str,
    ) -> Result<Option<String>, EngineError> {
        let hash = hash.to_owned();
        let row = self.engine.read(move |store| store.blueprint(&hash)).await?;
        let Some(row) = row else { return Ok(None) };
        let after = format!("{}.{}", row.created_ms, row.hash);
        let page = self.list_versions(caller, name, Some(&after), 1).await?;
        Ok(page.items.into_iter().next().map(|version| version.hash))
    }

    /// Returns the sums of a blueprint's runs of the last 30 days, if the caller may read all runs.
    pub(crate) async fn stats_of(self, caller: &Caller, name: &str) -> Option<StatsItem> {
        let ask = StatsAsk {
            by: StatsBy::Blueprint,
            since_ms: None,
            blueprint: Some(name.to_owned()),
            limit: Some(1),
        };
        self.engine.stats(caller, ask).await.ok()?.items.into_iter().next()
    }

    /// Returns what keeps the file of a blueprint from being served, in one line.
    pub(crate) fn problem_of(self, name: &str) -> Option<String> {
        let problems = self.engine.shared().programs.problems();
        let problem = problems.iter().find(|it| it.name == name)?;
        Some(format!("{}: {}", problem.file, problem.message))
    }
}

fn read_cursor(text: &str) -> Result<(u64, String), EngineError> {
    let parts = text.split_once('.');
    let cursor = parts.and_then(|(at_ms, hash)| Some((at_ms.parse().ok()?, hash.to_owned())));
    cursor.ok_or_else(|| EngineError::BadRequest("the cursor is not one of this list".to_owned()))
}
