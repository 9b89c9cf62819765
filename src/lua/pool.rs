//! The VMs that the flows of a shard live in.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use super::vm::Vm;

/// The VMs that flows can join, and the runs that must be alone.
#[derive(Default)]
pub(super) struct Pool {
    pub(super) vms: HashMap<String, Vec<Rc<Vm>>>,
    pub(super) suspects: HashSet<String>,
    pub(super) idle: usize,
    pub(super) live: usize,
}

impl Pool {
    /// Remembers that a run was executing when its VM ran out of memory.
    pub(super) fn suspect(&mut self, run_id: &str) {
        self.suspects.insert(run_id.to_owned());
    }

    /// Notes that a flow left `vm`.
    pub(super) fn left(&mut self, vm: &Rc<Vm>) {
        self.live -= 1;
        vm.left.set(true);
        let idle: usize = self.vms.values().flatten().filter(|vm| vm.live() == 0).count();
        if vm.live() == 0 && (vm.condemned.get() || idle > self.idle) {
            self.discard(vm);
        }
    }

    fn discard(&mut self, vm: &Rc<Vm>) {
        if let Some(vms) = self.vms.get_mut(vm.key()) {
            vms.retain(|other| !Rc::ptr_eq(other, vm));
            if vms.is_empty() {
                self.vms.remove(vm.key());
            }
        }
    }
}
