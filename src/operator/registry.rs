//! The operators of a host by name, with the properties of their members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Backend, Composite, GraphError, composite,
    main_ai::{KIND, MAIN_AI},
};
use crate::{
    blueprint::Operators,
    environment::{Environments, Scrubber},
    flow::{Rule, ValuePath},
    middleware::Layer,
    protocol::{Environment, Operator, Scope, StateReader, StateStore, Ticket, ToolMetadata},
    store::ForeignStores,
};

/// Operators implemented in code, by name.
#[derive(Clone, Default)]
pub struct Coded {
    operators: BTreeMap<String, Arc<dyn Backend>>,
    tools: BTreeMap<String, ToolMetadata>,
    environments: BTreeMap<String, Arc<dyn Environment>>,
    stores: ForeignStores,
}

impl Coded {
    /// Adds an operator under a name.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>, backend: impl Backend + 'static) -> Self {
        self.operators.insert(name.into(), Arc::new(backend));
        self
    }

    /// Adds an operator of the protocol under a name.
    #[must_use]
    pub fn and_operator(self, name: impl Into<String>, operator: impl Operator + 'static) -> Self {
        self.and(name, super::Plain::new(operator))
    }

    /// Adds an operator of the protocol that reads state: `make` creates one for each attempt, with
    /// the state that the attempt may read.
    #[must_use]
    pub fn and_reader<O: Operator + 'static>(
        self,
        name: impl Into<String>,
        make: impl Fn(Arc<dyn StateReader>) -> O + Send + Sync + 'static,
    ) -> Self {
        self.and(name, super::Reading::new(make))
    }

    /// Adds an environment under a name: an agent of kind `process` that names it as its
    /// `environment` is executed by it, with its command in the input's metadata.
    #[must_use]
    pub fn and_environment(
        mut self,
        name: impl Into<String>,
        environment: Arc<dyn Environment>,
    ) -> Self {
        self.environments.insert(name.into(), environment);
        self
    }

    /// Keeps a scope of state in a store of one's own, which is written after the commit that asks
    /// for it, at least once.
    ///
    /// # Panics
    /// If it is the scope of a run, or of an operator within one: these belong to the host.
    #[must_use]
    pub fn and_store(mut self, scope: &Scope, store: Arc<dyn StateStore>) -> Self {
        let own = matches!(scope, Scope::Workflow(_) | Scope::Operator { .. });
        assert!(!own, "the state of a run is the host's");
        self.stores.insert(scope.to_string(), store);
        self
    }

    /// Returns the environments by name.
    pub(crate) fn environments(&self) -> BTreeMap<String, Arc<dyn Environment>> {
        self.environments.clone()
    }

    /// Declares the tool that the operator of a name is to models: an agent whose `tools` have
    /// `{ operator = name }` gets its name, description and schema from here, where the entry has
    /// none of its own, and runs it alone unless it is `parallel_safe`.
    #[must_use]
    pub fn with_tool(mut self, name: impl Into<String>, tool: ToolMetadata) -> Self {
        self.tools.insert(name.into(), tool);
        self
    }
}

impl std::fmt::Debug for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.operators.keys()).finish()
    }
}

/// The operators by name. It never changes while the host runs.
#[derive(Clone, Default)]
pub struct Registry {
    operators: Arc<BTreeMap<String, Arc<dyn Backend>>>,
    environments: Option<Arc<Environments>>,
    answered: Option<Answered>,
    tools: Arc<BTreeMap<String, ToolMetadata>>,
    stores: Arc<ForeignStores>,
}

/// The agents whose tasks are answered by a stand-in.
pub type Answered = Arc<parking_lot::Mutex<BTreeSet<String>>>;

impl Registry {
    /// Creates a registry of operators by name.
    pub fn new(operators: BTreeMap<String, Arc<dyn Backend>>) -> Self {
        Self { operators: Arc::new(operators), ..Self::default() }
    }

    /// Sets the environments of child processes.
    #[must_use]
    pub fn with_environments(self, environments: Arc<Environments>) -> Self {
        Self { environments: Some(environments), ..self }
    }

    /// Sets the agents that a stand-in answers for: their tasks go to the operator whole, even if
    /// that is a model.
    #[must_use]
    pub fn answered_for(self, agents: Answered) -> Self {
        Self { answered: Some(agents), ..self }
    }

    /// Returns true if a task of an agent for this operator is a loop of model calls.
    pub fn loops(&self, name: &str, agent: &str) -> bool {
        let answered = |agents: &Answered| agents.lock().contains(agent);
        // A quorum compares results of the agent, not single replies of its model.
        self.is_model(name)
            && self.compared(name).is_empty()
            && !self.answered.as_ref().is_some_and(answered)
    }

    /// Returns the secrets that an attempt was given, if any.
    pub fn secrets_of(&self, ticket: Ticket) -> Option<Arc<Scrubber>> {
        self.environments.as_ref()?.held().of(ticket)
    }

    /// Adds the operators implemented in code.
    #[must_use]
    pub fn with(self, code: &Coded) -> Self {
        let mut operators = (*self.operators).clone();
        let code_of = |(name, it): (&String, &Arc<dyn Backend>)| (name.clone(), Arc::clone(it));
        operators.extend(code.operators.iter().map(code_of));
        let mut tools = (*self.tools).clone();
        tools.extend(code.tools.clone());
        let mut stores = (*self.stores).clone();
        stores.extend(code.stores.clone());
        let (operators, tools, stores) = (operators.into(), tools.into(), stores.into());
        Self { operators, tools, stores, ..self }
    }

    /// Returns the stores of scopes that are not kept by the host.
    pub fn stores(&self) -> &Arc<ForeignStores> {
        &self.stores
    }

    /// Returns the operator with a name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Backend>> {
        self.operators.get(self.name_of(name))
    }

    /// Returns true if any node of a cluster can do the work of an operator.
    pub fn is_portable(&self, name: &str) -> bool {
        let Some(backend) = self.get(name) else { return false };
        match backend.composite() {
            None => backend.is_portable(),
            // Composites have no circles.
            Some(composite) => composite.members().iter().all(|member| self.is_portable(member)),
        }
    }

    /// Returns the name under which an operator is known: `main_ai`, its kind, means `main-ai`,
    /// unless an operator is declared under that name.
    pub fn name_of<'n>(&self, written: &'n str) -> &'n str {
        match written {
            KIND if !self.operators.contains_key(KIND) => MAIN_AI,
            name => name,
        }
    }

    /// Verifies that the members of every composite exist and that none contains itself.
    ///
    /// # Errors
    /// Returns the first composite that is invalid.
    pub fn check(&self) -> Result<(), GraphError> {
        let all = || self.operators.iter().map(|(name, it)| (name, it.composite()));
        let others: Vec<&str> =
            all().filter(|(_, it)| it.is_none()).map(|(name, _)| name.as_str()).collect();
        let composites = all().filter_map(|(name, it)| Some((name.clone(), it?.clone())));
        composite::check(&composites.collect(), &others)
    }

    /// Returns the operators that do the work: the operator itself, or the leaves of a composite.
    fn leaves(&self, name: &str) -> Vec<&Arc<dyn Backend>> {
        let mut leaves = Vec::new();
        self.gather(name, &mut Default::default(), &mut |backend| {
            if backend.composite().is_none() {
                leaves.push(backend);
            }
        });
        leaves
    }

    /// Returns true if the tasks of an operator are for people, or those of one within it; also for an
    /// operator that there is none of, because nobody knows what it was.
    pub fn asks_people(&self, name: &str) -> bool {
        let leaves = self.leaves(name);
        leaves.is_empty() || leaves.iter().any(|leaf| leaf.asks_people())
    }

    /// Visits an operator and everything within it, each once.
    fn gather<'a>(
        &'a self,
        name: &str,
        seen: &mut BTreeSet<String>,
        passes: &mut dyn FnMut(&'a Arc<dyn Backend>),
    ) {
        let Some(backend) = self.get(name).filter(|_| seen.insert(name.to_owned())) else { return };
        passes(backend);
        for member in backend.composite().map_or(&[][..], Composite::members) {
            self.gather(member, seen, passes);
        }
    }

    /// Returns every name, sorted, with its kind.
    pub fn names(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.operators.iter().map(|(name, backend)| (name.as_str(), backend.kind()))
    }

    /// Returns the kinds whose tasks go to sessions.
    pub fn session_kinds(&self) -> BTreeSet<&'static str> {
        let backends = self.operators.values().filter(|backend| backend.holds_session());
        backends.map(|backend| backend.kind()).collect()
    }
}

impl Operators for Registry {
    fn kind(&self, name: &str) -> Option<&str> {
        self.get(name).map(|backend| backend.kind())
    }

    fn requires_worker_binding(&self, name: &str) -> bool {
        self.leaves(name).iter().any(|backend| backend.requires_worker_binding())
    }

    fn is_model(&self, name: &str) -> bool {
        // Asked about every task, most of whose operators are no composites.
        if let Some(backend) = self.get(name).filter(|it| it.composite().is_none()) {
            return backend.is_model();
        }
        let leaves = self.leaves(name);
        !leaves.is_empty() && leaves.iter().all(|backend| backend.is_model())
    }

    fn is_leased(&self, name: &str) -> bool {
        let leaves = self.leaves(name);
        leaves.is_empty() || leaves.iter().any(|backend| backend.is_leased())
    }

    fn tool(&self, name: &str) -> Option<&ToolMetadata> {
        self.tools.get(self.name_of(name))
    }

    fn requires_tool(&self, name: &str) -> bool {
        self.leaves(name).iter().any(|backend| backend.requires_tool())
    }

    fn kinds(&self, name: &str) -> Vec<&str> {
        let mut kinds: Vec<&str> = self.leaves(name).iter().map(|it| it.kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn compared(&self, name: &str) -> Vec<ValuePath> {
        let mut paths = Vec::new();
        self.gather(name, &mut Default::default(), &mut |backend| {
            if let Some(Rule::Quorum { path, .. }) = backend.composite().map(Composite::rule) {
                paths.push(path.clone());
            }
        });
        paths
    }

    fn declaration(&self, kind: &str) -> Option<&'static str> {
        super::declared::lines_of(kind)
    }

    fn refuses_environment(&self, environment: &Value) -> Vec<(String, String)> {
        let Some(environments) = &self.environments else {
            let helps = "check it where the host runs";
            return vec![("nothing here gives environments".to_owned(), helps.to_owned())];
        };
        let refused = environments.judge(environment).into_iter();
        refused
            .map(|it| (format!("`{}` cannot be given here: {}", it.what, it.reason), it.helps))
            .collect()
    }

    fn check_layer(&self, layer: &serde_json::Value) -> Result<(), String> {
        Layer::of(layer).map(drop).map_err(|error| error.to_string())
    }

    fn names(&self) -> Vec<String> {
        self.operators.keys().cloned().collect()
    }
}
