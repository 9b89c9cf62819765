//! Assembles the operators of a host: the built-in ones and the declared ones.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{
    Backend, Builtin, Declared, Echo, HUMAN, Human, Lua, MAIN_AI, MainAi, PromptTransport, Queue,
    Registry, lua_calls,
};
use crate::{
    clock::Clock,
    environment::{self, Environments},
    lua::TaskLimits,
    tasks::Tasks,
};

impl Declared {
    /// These operators and the built-in ones where no host runs: models can be asked, everything
    /// else is only known.
    pub fn alone(&self) -> Registry {
        Builtin::alone(environment::Config::default()).registry(self)
    }
}

impl Builtin {
    /// Returns the services for operators without a host: Lua functions return their input.
    pub fn alone(environments: environment::Config) -> Self {
        Self {
            lua: Arc::new(|_, input| Box::pin(async { Ok(input) })),
            bundle_dir: Arc::new(|_| Ok(PathBuf::new())),
            queues: Arc::default(),
            environments: Arc::new(Environments::new(environments, Path::new(""), Clock::system())),
            clock: Clock::system(),
            stopping: CancellationToken::new(),
            sessions: Arc::default(),
        }
    }

    /// Returns the registry of the built-in operators `echo`, `human`, `lua`, `process`, `queue`
    /// and `main-ai`, and of the declared ones, which may configure these names again.
    pub fn registry(self, declared: &Declared) -> Registry {
        let operators: [Arc<dyn Backend>; 5] = [
            Arc::new(Echo),
            Arc::new(Human),
            Arc::new(Lua::new(Arc::clone(&self.lua))),
            Arc::new(self.process()),
            Arc::new(Queue::new(Arc::clone(&self.queues))),
        ];
        let main_ai = MainAi::new(Arc::clone(&self.sessions), PromptTransport::Thin, true);
        let main_ai: (String, Arc<dyn Backend>) = (MAIN_AI.to_owned(), Arc::new(main_ai));
        let builtin = operators.into_iter().map(|operator| (operator.kind().to_owned(), operator));
        let declared =
            declared.iter().map(|(name, settings)| (name.to_owned(), settings.build(&self)));
        let all = builtin.chain([main_ai]).chain(declared).collect::<BTreeMap<_, _>>();
        Registry::new(all).with_environments(self.environments)
    }
}

/// Creates the operator of a kind for a test of blueprints, if its tasks are executed there: it
/// uses nothing outside of the program, or it asks people, and the test answers.
pub fn rehearsed(kind: &str, tasks: &Tasks, limits: &TaskLimits) -> Option<Arc<dyn Backend>> {
    match kind {
        HUMAN => Some(Arc::new(Human)),
        "echo" => Some(Arc::new(Echo)),
        "lua" => Some(Arc::new(Lua::new(lua_calls(tasks.clone(), limits.clone())))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_built_in_operator_stands_under_its_kind() {
        let builtin = Builtin {
            lua: Arc::new(|_, input| Box::pin(async { Ok(input) })),
            bundle_dir: Arc::new(|_| Ok(PathBuf::new())),
            queues: Arc::default(),
            environments: crate::operator::fixture::environments(),
            clock: Clock::system(),
            stopping: CancellationToken::new(),
            sessions: Arc::default(),
        };
        let registry = builtin.registry(&Declared::default());
        let names: Vec<_> = registry.names().collect();
        let same = |kind| (kind, kind);
        let expected = [
            same("echo"),
            same("human"),
            same("lua"),
            ("main-ai", "main_ai"),
            same("process"),
            same("queue"),
        ];
        assert_eq!(names, expected);
    }
}
