//! A shard's VMs: one for each version of a blueprint, more where one is full.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use super::{
    Coverage,
    flow::{RunFacts, ScriptFlow},
    pool::Pool,
    source::Source,
    vm::Vm,
    watchdog::{Lane, Watchdog},
};
use crate::{
    flow::RunLimits,
    memory::Memory,
    protocol::{Failure, failure::kind},
};

/// The memory of a run's own VM beyond the run's limit: the library, and temporary values.
const LIBRARY: usize = 16 << 20;
/// Branches of a VM's flows at which the next flow goes elsewhere.
const BRANCHES: usize = 100_000;

/// The limits of the sandbox, apart from those of each run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory of one VM, in bytes.
    pub vm_memory: usize,
    /// Live flows in one VM, at most 255.
    pub runs_per_vm: usize,
    /// VMs without a flow that a shard keeps for the next one.
    pub idle_vms: usize,
    /// CPU time to evaluate a blueprint, in milliseconds.
    pub evaluate_ms: u64,
    /// Memory to evaluate a blueprint, in bytes.
    pub evaluate_memory: usize,
    /// An evaluated blueprint, in bytes of JSON.
    pub value: usize,
    /// Counts executed lines; only in tests of blueprints.
    pub coverage: Option<Coverage>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            vm_memory: 512 << 20,
            runs_per_vm: 255,
            idle_vms: 8,
            evaluate_ms: 1_000,
            evaluate_memory: 64 << 20,
            value: 4 << 20,
            coverage: None,
        }
    }
}

/// The VMs of one shard.
pub struct Vms {
    limits: Limits,
    lane: Arc<Lane>,
    pool: Rc<RefCell<Pool>>,
    memory: Arc<Memory>,
}

impl Vms {
    /// Prepares a shard; `watchdog` will look after its slices.
    pub fn new(limits: Limits, watchdog: &Watchdog) -> Self {
        let pool = Pool { idle: limits.idle_vms, ..Pool::default() };
        let pool = Rc::new(RefCell::new(pool));
        Self { limits, lane: watchdog.lane(), pool, memory: Memory::unlimited() }
    }

    /// The same, with what its VMs hold counted together with everything else of a host.
    #[must_use]
    pub fn within(mut self, memory: &Arc<Memory>) -> Self {
        self.memory = Arc::clone(memory);
        self
    }

    /// Gives back what flows that are gone have left: VMs without a flow, and the garbage of one
    /// other.
    pub fn relieve(&self) {
        let mut pool = self.pool.borrow_mut();
        pool.vms.retain(|_, vms| {
            vms.retain(|vm| vm.live() > 0);
            !vms.is_empty()
        });
        let left = pool.vms.values().flatten().filter(|vm| vm.left.get());
        let fullest = left.max_by_key(|vm| vm.machine.memory()).map(Rc::clone);
        drop(pool);
        if let Some(vm) = fullest {
            vm.collect();
        }
    }

    /// Creates a flow. None of the author's code runs before the flow's first input.
    ///
    /// A run during whose turn a VM ran out of memory gets a VM of its own.
    ///
    /// # Errors
    /// Fails when there is no memory for another VM.
    pub fn start(
        &mut self,
        source: &Arc<Source>,
        facts: RunFacts,
        limits: RunLimits,
    ) -> Result<ScriptFlow, Failure> {
        let suspect = self.pool.borrow_mut().suspects.remove(&facts.run_id);
        let (vm, category) = if suspect {
            let vm = self.open(source, limits.memory + LIBRARY, 1, true)?;
            let category = vm.admit().expect("a new VM is empty");
            (vm, category)
        } else {
            self.find(source)?
        };
        self.pool.borrow_mut().live += 1;
        let (pool, lane) = (Rc::clone(&self.pool), Arc::clone(&self.lane));
        Ok(ScriptFlow::new(vm, category, pool, lane, facts, limits))
    }

    /// Flows that live on this shard.
    pub fn live(&self) -> usize {
        self.pool.borrow().live
    }

    /// VMs that flows can join.
    pub fn vms(&self) -> usize {
        self.pool.borrow().vms.values().map(Vec::len).sum()
    }

    /// Memory of these VMs, in bytes.
    pub fn bytes(&self) -> usize {
        self.pool.borrow().vms.values().flatten().map(|vm| vm.machine.memory()).sum()
    }

    fn find(&self, source: &Source) -> Result<(Rc<Vm>, u8), Failure> {
        let mut pool = self.pool.borrow_mut();
        let vms = pool.vms.entry(source.key().to_owned()).or_default();
        vms.retain(|vm| !vm.condemned.get());
        for vm in vms.iter() {
            let roomy = vm.machine.memory() < self.limits.vm_memory / 2;
            if roomy
                && vm.branches.get() < BRANCHES
                && let Some(category) = vm.admit()
            {
                return Ok((Rc::clone(vm), category));
            }
        }
        let vm = self.open(source, self.limits.vm_memory, self.limits.runs_per_vm, false)?;
        let category = vm.admit().expect("a new VM is empty");
        vms.push(Rc::clone(&vm));
        Ok((vm, category))
    }

    fn open(
        &self,
        source: &Source,
        memory: usize,
        runs: usize,
        solo: bool,
    ) -> Result<Rc<Vm>, Failure> {
        let vm = Vm::open(source, memory, runs, solo).map_err(|error| {
            Failure::new(kind::LIMIT, format!("no VM could be opened: {error}"))
        })?;
        vm.count_in(self.memory.share());
        Ok(Rc::new(vm))
    }
}
