//! The stacks that runs go through: the host's layers, and those that a blueprint adds inside.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    engine::gate::RunGate,
    lua::Program,
    middleware::{DispatchStack, Layer, Listed, Means, Stacks, Tracing, tell_apart},
};

/// Versions whose stacks stay assembled.
const KEPT: usize = 256;

/// What a host puts between its runs and what they reach.
#[derive(Debug, Clone, Default)]
pub struct Middleware {
    /// Layers of code, outside of those that are data.
    pub code: Stacks,
    /// Layers that a configuration names, in their order.
    pub layers: Vec<Layer>,
}

impl Middleware {
    /// Layers of data, and no code.
    pub fn of(layers: Vec<Layer>) -> Self {
        Self { code: Stacks::default(), layers }
    }
}

/// The stack of each blueprint's version.
pub(crate) struct StackBook {
    host: Arc<Stacks>,
    metered: bool,
    means: Means,
    of: Mutex<HashMap<String, Arc<Stacks>>>,
}

impl StackBook {
    pub(crate) fn new(wanted: Middleware, means: Means) -> Self {
        let Middleware { code, mut layers } = wanted;
        tell_apart(&mut layers);
        let named_tracing = layers.iter().any(|layer| layer.settings.kind() == "tracing");
        let mut base = DispatchStack::builder();
        if !named_tracing {
            base = base.observe(Tracing);
        }
        // The gate is the first of all guards: nothing is answered that it has not let through.
        let mut outermost = Stacks::default();
        outermost.dispatch = base.guard(RunGate).build();
        let base = outermost;
        let named = Stacks::of(&layers, "host", "", &means);
        let metered = code.dispatch.names().next().is_some() || !layers.is_empty();
        let host = Arc::new(base.and(&code).and(&named));
        Self { host, metered, means, of: Mutex::default() }
    }

    /// The stacks of a blueprint; the host's own where it adds nothing.
    pub(crate) fn of(&self, program: &Program) -> Arc<Stacks> {
        let layers = &program.blueprint().definition().middleware;
        if layers.is_empty() {
            return Arc::clone(&self.host);
        }
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of.get(program.blueprint().hash()) {
            return Arc::clone(known);
        }
        if of.len() >= KEPT {
            // What layers keep is durable; what they counted since is on its way there.
            of.clear();
        }
        let stacks = Arc::new(self.assemble(program, layers));
        of.insert(program.blueprint().hash().to_owned(), Arc::clone(&stacks));
        stacks
    }

    fn assemble(&self, program: &Program, layers: &[serde_json::Value]) -> Stacks {
        // They were read when the blueprint was checked.
        let read = layers.iter().filter_map(|data| Layer::of(data).ok());
        let mut layers: Vec<Layer> = read.collect();
        tell_apart(&mut layers);
        let prefix = format!("{}/", program.blueprint().name());
        self.host.and(&Stacks::of(&layers, "blueprint", &prefix, &self.means))
    }

    /// Every layer in its place.
    pub(crate) fn list(&self, program: Option<&Program>) -> Vec<Listed> {
        program.map_or_else(|| self.host.list(), |program| self.of(program).list())
    }

    /// Whether a layer may want to know what a run has used: all but the host's own two.
    pub(crate) fn meters(&self, program: &Program) -> bool {
        self.metered || !program.blueprint().definition().middleware.is_empty()
    }

    /// The host's own stacks, for what belongs to no run.
    pub(crate) fn host(&self) -> &Arc<Stacks> {
        &self.host
    }
}
