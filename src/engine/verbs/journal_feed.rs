//! The entries of all runs as they become durable, for what is made of whole histories: traces.
//!
//! As with the feed of events, the journal is the queue: a reader that comes back with its place
//! misses nothing, and a slow one holds one page.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use crate::{
    blueprint::{Rendered, Slots},
    engine::{Engine, EngineError, shared::shards::Shared},
    journal::Entry,
    lua::Program,
    middleware::Stacks,
    operator::{ModelSource, Residence, ToolServer},
    store::{FeedRow, Header, Write},
};

/// The maximum number of rows of a page.
const ROWS: usize = 512;
/// The maximum number of bytes of a page, unless a single row is larger.
const BYTES: usize = 1 << 20;

/// A reader of the journal.
pub struct JournalFeed {
    shared: Arc<Shared>,
    after: u64,
}

/// The facts about a version that its journal does not have.
pub struct VersionFacts {
    agents: HashMap<String, AgentFacts>,
    stacks: Option<Arc<Stacks>>,
    program: Option<Arc<Program>>,
}

/// The facts about an agent that its journal does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentFacts {
    /// The operator that its tasks go to, by its name.
    pub operator: String,
    /// The model that it asks for.
    pub model: Option<String>,
    /// The tool of an MCP server that it calls.
    pub tool: Option<String>,
}

/// The facts about an operator that no journal has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFacts {
    /// Its kind.
    pub kind: &'static str,
    /// True if its tasks are executed in the process of the host, or by a model that the host asks. A
    /// child is a process of its own: the conventions have its work as that of a client.
    pub is_inside: bool,
    /// The provider that it asks, if it is a model.
    pub source: Option<ModelSource>,
    /// The server whose tools it calls, if it calls one.
    pub tool_server: Option<ToolServer>,
}

impl VersionFacts {
    /// Returns an agent.
    pub fn agent(&self, name: &str) -> Option<&AgentFacts> {
        self.agents.get(name)
    }

    /// Returns the prompts of a task of an agent; `None` if the agent does not exist, or a template
    /// uses what is not there.
    pub fn prompts(&self, agent: &str, slots: &Slots<'_>) -> Option<Rendered> {
        let blueprint = self.program.as_ref()?.blueprint();
        blueprint.agent(agent)?.render(blueprint, slots).ok()
    }

    /// Returns a value without what the layers redact; `None` if the layers are not known, because
    /// the version does not compile any more.
    pub fn redacted(&self, name: &str, value: Value) -> Option<Value> {
        Some(self.stacks.as_ref()?.redacted_value(name, value))
    }

    /// Returns the text that replaces the values of a key; `None` if no layer redacts it.
    pub fn instead_of(&self, key: &str) -> Option<&str> {
        self.stacks.as_ref()?.instead_of(key)
    }
}

impl Engine {
    /// Returns a reader of the journal that begins after the place that was kept under `key`; without
    /// one, after the last settled row.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn journal_feed(&self, key: &'static str) -> Result<JournalFeed, EngineError> {
        let kept = self.read(move |store| store.meta(key)).await?;
        let kept: Option<u64> = kept.and_then(|text| text.parse().ok());
        let shared = Arc::clone(&self.inner.shared);
        let settled = shared.in_flight.settled(&*shared.store);
        Ok(JournalFeed { shared, after: kept.unwrap_or(settled).min(settled) })
    }

    /// Returns the facts about a version; none if it does not compile any more.
    pub async fn version_facts(&self, hash: &str) -> VersionFacts {
        let Ok(program) = self.blueprints().program_by(hash.to_owned()).await else {
            return VersionFacts { agents: HashMap::new(), stacks: None, program: None };
        };
        let registry = self.registry();
        let agents = program.blueprint().definition().agents.iter().map(|(name, agent)| {
            let facts = AgentFacts {
                operator: registry.name_of(&agent.operator).to_owned(),
                model: agent.model.clone(),
                tool: agent.tool.clone(),
            };
            (name.clone(), facts)
        });
        let stacks = Some(self.inner.shared.stacks.of(&program));
        let agents = agents.collect();
        VersionFacts { agents, stacks, program: Some(program) }
    }

    /// Returns the facts about the operators of the host, by their names.
    pub fn operator_facts(&self) -> HashMap<String, OperatorFacts> {
        let registry = self.registry();
        let names: Vec<&str> = registry.names().map(|(name, _)| name).collect();
        let facts = names.into_iter().filter_map(|name| {
            let backend = registry.get(name)?;
            let facts = OperatorFacts {
                kind: backend.kind(),
                is_inside: backend.residence() == Residence::Inline || backend.is_model(),
                source: backend.model_source(),
                tool_server: backend.tool_server(),
            };
            Some((name.to_owned(), facts))
        });
        facts.collect()
    }

    /// Keeps the place of a reader of the journal.
    ///
    /// # Errors
    /// Fails when the store cannot be written.
    pub async fn keep_place(&self, key: &'static str, after: u64) -> Result<(), EngineError> {
        let write = Write::PutMeta { key: key.to_owned(), value: after.to_string() };
        self.write(Vec::new(), vec![write]).await
    }

    /// Returns the header of a run; `None` if it was deleted.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn run_header(&self, run: u64) -> Result<Option<Header>, EngineError> {
        self.read(move |store| store.header(run)).await
    }

    /// Returns the entries of a run with numbers over `after` and up to `upto`, in all its histories.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn window(&self, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, EngineError> {
        self.read(move |store| store.window(run, after, upto)).await
    }
}

impl JournalFeed {
    /// Returns the place behind the last page.
    pub fn place(&self) -> u64 {
        self.after
    }

    /// Returns the number of rows that are settled and not read.
    pub fn behind(&self) -> u64 {
        self.settled().saturating_sub(self.after)
    }

    /// Leaves out everything that is settled; returns the number of rows.
    pub fn skip(&mut self) -> u64 {
        let skipped = self.behind();
        self.after += skipped;
        skipped
    }

    /// Goes back to a place that it has passed.
    pub fn rewind(&mut self, place: u64) {
        self.after = self.after.min(place);
    }

    fn settled(&self) -> u64 {
        self.shared.in_flight.settled(&*self.shared.store)
    }

    /// Waits until there are rows to read.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn ready(&self) {
        loop {
            let mut changed = std::pin::pin!(self.shared.in_flight.changed());
            // Registered before the look, so that nothing is missed.
            changed.as_mut().enable();
            if self.behind() > 0 {
                return;
            }
            changed.await;
        }
    }

    /// Returns the next page of rows, and true if it is the last one for now.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn page(&mut self) -> Result<(Vec<FeedRow>, bool), EngineError> {
        let settled = self.settled();
        let (shared, after) = (Arc::clone(&self.shared), self.after);
        let read = self
            .shared
            .tasks
            .spawn_blocking(move || shared.store.feed(after, settled, ROWS, BYTES))
            .await;
        let rows = read.map_err(|_| EngineError::Stopping)??;
        let bytes: usize = rows.iter().map(|row| row.bytes).sum();
        let is_full = rows.len() == ROWS || bytes >= BYTES;
        // A page that is not full is the last one up to the settled row.
        self.after = match rows.last() {
            Some(last) if is_full => last.lsn,
            Some(_) | None => settled,
        };
        Ok((rows, !is_full))
    }
}
