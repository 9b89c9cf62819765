//! The operators that exist without any configuration.

use std::{collections::BTreeMap, sync::Arc};

use super::{Backend, BundleDir, Echo, Human, Lua, LuaCall, Process, Queue, QueueHub, Registry};

/// What the built-in operators need from the host.
pub struct Builtin {
    /// How an agent's Lua function is called.
    pub lua: LuaCall,
    /// Where a blueprint's files are for its child processes.
    pub bundle_dir: BundleDir,
    /// The queues that pull workers lease from.
    pub queues: Arc<QueueHub>,
}

impl Builtin {
    /// The registry of `echo`, `human`, `lua`, `process` and `queue`.
    pub fn registry(self) -> Registry {
        let operators: [Arc<dyn Backend>; 5] = [
            Arc::new(Echo),
            Arc::new(Human),
            Arc::new(Lua::new(self.lua)),
            Arc::new(Process::new(self.bundle_dir)),
            Arc::new(Queue::new(self.queues)),
        ];
        Registry::new(
            operators
                .into_iter()
                .map(|operator| (operator.kind().to_owned(), operator))
                .collect::<BTreeMap<_, _>>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn each_built_in_operator_stands_under_its_kind() {
        let builtin = Builtin {
            lua: Arc::new(|_, input| Box::pin(async { Ok(input) })),
            bundle_dir: Arc::new(|_| Ok(PathBuf::new())),
            queues: Arc::default(),
        };
        let registry = builtin.registry();
        let names: Vec<_> = registry.names().collect();
        let kinds = ["echo", "human", "lua", "process", "queue"];
        assert_eq!(names, kinds.map(|kind| (kind, kind)));
    }
}
