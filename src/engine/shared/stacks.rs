//! The stacks of runs: the host's layers, and the layers of a blueprint inside them.

use std::sync::Arc;

use hashlink::LruCache;
use parking_lot::Mutex;

use crate::{
    engine::gate::RunGate,
    lua::Program,
    middleware::{DispatchStack, Layer, Listed, Means, Stacks, Tracing, tell_apart},
};

/// The maximum number of versions whose stacks are cached.
const KEPT: usize = 256;

/// The layers of a host.
#[derive(Debug, Clone, Default)]
pub struct Middleware {
    /// Layers implemented in code, outside of the declared ones.
    pub code: Stacks,
    /// Layers that the configuration declares, in order.
    pub layers: Vec<Layer>,
}

impl Middleware {
    /// Returns declared layers, without layers in code.
    pub fn of(layers: Vec<Layer>) -> Self {
        Self { code: Stacks::default(), layers }
    }
}

/// The stacks of each version of a blueprint.
pub(crate) struct StackBook {
    host: Arc<Stacks>,
    metered: bool,
    means: Means,
    of: Mutex<LruCache<String, Arc<Stacks>>>,
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
        // The gate is the first guard: no layer may answer a dispatch that the gate would refuse.
        let mut outermost = Stacks::default();
        outermost.dispatch = base.guard(RunGate).build();
        let base = outermost;
        let named = Stacks::of(&layers, "host", "", &means);
        let metered = code.dispatch.names().next().is_some() || !layers.is_empty();
        let host = Arc::new(base.and(&code).and(&named));
        Self { host, metered, means, of: Mutex::new(LruCache::new(KEPT)) }
    }

    /// Returns the stacks of a blueprint; the host's own if it declares no layers.
    pub(crate) fn of(&self, program: &Program) -> Arc<Stacks> {
        let layers = &program.blueprint().definition().middleware;
        if layers.is_empty() {
            return Arc::clone(&self.host);
        }
        let mut of = self.of.lock();
        if let Some(known) = of.get(program.blueprint().hash()) {
            return Arc::clone(known);
        }
        // A stack that is dropped loses nothing: the stored data of layers is durable.
        let stacks = Arc::new(self.assemble(program, layers));
        of.insert(program.blueprint().hash().to_owned(), Arc::clone(&stacks));
        stacks
    }

    fn assemble(&self, program: &Program, layers: &[serde_json::Value]) -> Stacks {
        // They were validated when the blueprint was checked.
        let read = layers.iter().filter_map(|data| Layer::of(data).ok());
        let mut layers: Vec<Layer> = read.collect();
        tell_apart(&mut layers);
        let prefix = format!("{}/", program.blueprint().name());
        self.host.and(&Stacks::of(&layers, "blueprint", &prefix, &self.means))
    }

    /// Returns every layer in its position.
    pub(crate) fn list(&self, program: Option<&Program>) -> Vec<Listed> {
        program.map_or_else(|| self.host.list(), |program| self.of(program).list())
    }

    /// Returns true if a layer may need the usage of a run: any layer but the host's own two.
    pub(crate) fn meters(&self, program: &Program) -> bool {
        self.metered || !program.blueprint().definition().middleware.is_empty()
    }

    /// Returns true if at present nothing but the gate stands around the dispatches of a blueprint.
    pub(crate) fn is_plain(&self, program: &Program) -> bool {
        !self.meters(program) && !self.host.dispatch.is_observed()
    }

    /// Returns the host's own stacks, for operations that belong to no run.
    pub(crate) fn host(&self) -> &Arc<Stacks> {
        &self.host
    }
}
