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
        let hash = program.blueprint().hash();
        let known = self.of.lock().get(hash).map(Arc::clone);
        if let Some(known) = known {
            return known;
        }
        // The lock, which all shards take, is not held meanwhile. If two assemble a stack, the
        // first counts for both. One that is dropped later loses nothing: what its layers store is
        // durable.
        let (stacks, is_usable) = self.assemble(program, layers);
        let stacks = Arc::new(stacks);
        if !is_usable {
            return stacks;
        }
        Arc::clone(self.of.lock().entry(hash.to_owned()).or_insert(stacks))
    }

    /// Returns the stacks, and false if one of the layers cannot be read.
    fn assemble(&self, program: &Program, layers: &[serde_json::Value]) -> (Stacks, bool) {
        let prefix = format!("{}/", program.blueprint().name());
        let (mut read, mut unusable) = (Vec::new(), Stacks::default());
        for data in layers {
            match Layer::of(data) {
                Ok(layer) => read.push(layer),
                // It was accepted by a check, perhaps of another release.
                Err(error) => {
                    let named = data["name"].as_str().or_else(|| data["kind"].as_str());
                    let name = format!("{prefix}{}", named.unwrap_or("layer"));
                    tracing::error!(layer = name, %error, "a layer cannot be used");
                    let refuses = Stacks::unusable(&name, "blueprint", data, &error);
                    unusable = unusable.and(&refuses);
                }
            }
        }
        let is_usable = read.len() == layers.len();
        tell_apart(&mut read);
        // What refuses is outside of what may answer.
        let own = unusable.and(&Stacks::of(&read, "blueprint", &prefix, &self.means));
        (self.host.and(&own), is_usable)
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{
        blueprint::{Bundle, Operators},
        clock::Clock,
        lua::Limits,
        middleware::{MemoryKeep, fixture},
    };

    /// Takes every layer, as a release that knew more of them.
    struct Lenient;

    impl Operators for Lenient {
        fn kind(&self, _: &str) -> Option<&str> {
            None
        }

        fn requires_worker_binding(&self, _: &str) -> bool {
            false
        }

        fn names(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn program(layers: &str) -> Program {
        let source = format!(
            "return require('swarm').blueprint {{ name = 'it', flow = function() end, \
             middleware = {{ {layers} }} }}"
        );
        let bundle = Bundle::from_source("it.lua", source).unwrap();
        Program::compile(bundle, &Lenient, &Limits::default()).unwrap().0
    }

    #[test]
    fn a_stored_layer_that_cannot_be_read_refuses_everything() {
        let clock = Clock::manual(0);
        let means = Means::of(Arc::new(MemoryKeep::new(clock.clone())), clock);
        let book = StackBook::new(Middleware::default(), means);
        let broken = program("{ kind = 'cache' }, { kind = 'guard', agents = 7 }");
        let stacks = book.of(&broken);
        let names: Vec<_> = stacks.dispatch.names().collect();
        assert_eq!(names, ["tracing", "gate", "it/guard", "it/cache"]);
        let run = stacks.dispatch.run(fixture::dispatch("1"), &fixture::Echo).now_or_never();
        let refused = run.unwrap().unwrap_err().message;
        assert!(refused.starts_with("the layer it/guard cannot be used"), "{refused}");
        let whole = program("{ kind = 'cache' }");
        assert!(Arc::ptr_eq(&book.of(&whole), &book.of(&whole)));
        assert!(!Arc::ptr_eq(&book.of(&broken), &stacks), "it is tried again");
    }
}
