//! Which adapter starts the workers of which operator.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;

use super::{OperatorSpawner, SpawnerAdapter, Worker};
use crate::{
    operator::{Registry, Task},
    protocol::{Failure, Json},
    tasks::Tasks,
};

/// Adapters by the name or the kind of an operator; the name goes first, and what neither names is
/// started by [`OperatorSpawner`].
#[derive(Clone, Default)]
pub struct Spawners {
    names: BTreeMap<String, Arc<dyn SpawnerAdapter>>,
    kinds: BTreeMap<String, Arc<dyn SpawnerAdapter>>,
}

impl Spawners {
    /// The same, with an adapter for one operator.
    #[must_use]
    pub fn for_operator(
        mut self,
        name: impl Into<String>,
        adapter: Arc<dyn SpawnerAdapter>,
    ) -> Self {
        self.names.insert(name.into(), adapter);
        self
    }

    /// The same, with an adapter for all operators of a kind.
    #[must_use]
    pub fn for_kind(mut self, kind: impl Into<String>, adapter: Arc<dyn SpawnerAdapter>) -> Self {
        self.kinds.insert(kind.into(), adapter);
        self
    }

    /// All of them over the operators of a host, as one adapter; workers are among `tasks`.
    pub fn over(self, registry: Registry, tasks: Tasks) -> Arc<dyn SpawnerAdapter> {
        let usual = OperatorSpawner::new(registry.clone(), tasks);
        if self.names.is_empty() && self.kinds.is_empty() {
            return Arc::new(usual);
        }
        Arc::new(Chosen { spawners: self, registry, usual })
    }
}

impl fmt::Debug for Spawners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names.keys()).entries(self.kinds.keys()).finish()
    }
}

/// Chooses an adapter for each attempt.
struct Chosen {
    spawners: Spawners,
    registry: Registry,
    usual: OperatorSpawner,
}

#[async_trait]
impl SpawnerAdapter for Chosen {
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure> {
        let name = &**task.executor();
        let of_kind = || self.spawners.kinds.get(self.registry.get(name)?.kind());
        match self.spawners.names.get(name).or_else(of_kind) {
            Some(adapter) => adapter.spawn(task, input).await,
            None => self.usual.spawn(task, input).await,
        }
    }
}
