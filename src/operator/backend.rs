//! The seam between the host and whoever executes a task.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use super::{Composite, GraphError, Task, composite};
use crate::{
    blueprint::{Agent, Operators},
    flow::{Rule, ValuePath},
    middleware::TaskDone,
    protocol::{Failure, Json},
};

/// Where the work of an attempt lives, which decides what a crash of the host means for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// In the host, without effects outside: it may run ahead of the commit, and again.
    Inline,
    /// In the host or in a child of it: dispatched after the commit, interrupted by a crash.
    Host,
    /// Somewhere else: dispatched after the commit, outlives the host; its result comes through
    /// the worker API.
    Elsewhere,
}

/// What a backend says of an attempt.
#[derive(Debug)]
pub enum Reply {
    /// It is done.
    Done(TaskDone),
    /// It is with somebody else now, who will report.
    Parked,
}

/// A configured way to get tasks done.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The kind: `process`, `human`, `echo`.
    fn kind(&self) -> &'static str;

    /// Where its work lives.
    fn residence(&self) -> Residence;

    /// Whether an agent needs a worker binding to use it.
    fn requires_worker_binding(&self) -> bool {
        false
    }

    /// Whether an agent needs to name a tool to use it.
    fn requires_tool(&self) -> bool {
        false
    }

    /// Time for one attempt, where neither the call nor its agent says.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Whether a task that it did not deliver before the host ended has to be given to it again;
    /// only for work that lives elsewhere and is pushed there.
    fn redelivers(&self) -> bool {
        false
    }

    /// The queue that tasks of an agent wait in for a pull worker, if that is how it works.
    fn queue<'a>(&'a self, _agent: &'a Agent, _name: &'a str) -> Option<&'a str> {
        None
    }

    /// Who its members are, if it only stands for others; then it is never executed itself.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Executes one attempt. May be called again for the same task, with a higher attempt.
    ///
    /// # Errors
    /// The failure that ends the attempt; `retryable` says whether another may help.
    ///
    /// # Cancel safety
    /// `task.cancel` is canceled when the attempt is given up: the backend then ends what it
    /// started and returns.
    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure>;
}

/// The operators by name. It never changes while the host runs.
#[derive(Clone, Default)]
pub struct Registry {
    operators: Arc<BTreeMap<String, Arc<dyn Backend>>>,
}

impl Registry {
    /// The operators given, by name.
    pub fn new(operators: BTreeMap<String, Arc<dyn Backend>>) -> Self {
        Self { operators: Arc::new(operators) }
    }

    /// The operator of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Backend>> {
        self.operators.get(name)
    }

    /// Whether every composite stands for operators that exist, and none for itself.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), GraphError> {
        let all = || self.operators.iter().map(|(name, it)| (name, it.composite()));
        let others: Vec<&str> =
            all().filter(|(_, it)| it.is_none()).map(|(name, _)| name.as_str()).collect();
        let composites = all().filter_map(|(name, it)| Some((name.clone(), it?.clone())));
        composite::check(&composites.collect(), &others)
    }

    /// Those that an operator stands for in the end: itself, or whatever is within a composite.
    fn leaves(&self, name: &str) -> Vec<&Arc<dyn Backend>> {
        let mut leaves = Vec::new();
        self.gather(name, &mut Default::default(), &mut |backend| {
            if backend.composite().is_none() {
                leaves.push(backend);
            }
        });
        leaves
    }

    /// Passes an operator and everything within it, each once.
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

    /// Every name, sorted, with its kind.
    pub fn names(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.operators.iter().map(|(name, backend)| (name.as_str(), backend.kind()))
    }
}

impl Operators for Registry {
    fn kind(&self, name: &str) -> Option<&str> {
        self.get(name).map(|backend| backend.kind())
    }

    fn requires_worker_binding(&self, name: &str) -> bool {
        self.leaves(name).iter().any(|backend| backend.requires_worker_binding())
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

    fn names(&self) -> Vec<String> {
        self.operators.keys().cloned().collect()
    }
}
