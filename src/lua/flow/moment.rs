//! A look at the calls of a flow, at the moment when it asks for a step.
//!
//! Only a flow that was told to watch for a step has one. Nothing of the author's runs for it, and the
//! flow goes on as if there had been none.

use std::{collections::HashMap, ffi::c_void};

use mlua::{Table, Value};

use super::ScriptFlow;
use crate::{
    journal::{ScopePath, StepKey},
    lua::{
        raw::{GlanceRoom, StackFrame},
        tree::{Home, Id},
    },
};

/// The branches whose calls are read.
const BRANCHES: usize = 16;

/// The calls of a flow at the moment when it asked for a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// The branch that asked for the step, those around it from the innermost on, and others.
    pub branches: Vec<BranchStack>,
    /// The number of other branches.
    pub more: usize,
}

/// A branch of a flow with its calls.
#[derive(Debug, Clone, PartialEq)]
pub struct BranchStack {
    /// Its name with those around it; absent for the flow's own function.
    pub name: Option<String>,
    /// Its scope.
    pub scope: ScopePath,
    /// The step that it waits for.
    pub waits: Option<StepKey>,
    /// The author's calls in progress, the innermost first.
    pub frames: Vec<StackFrame>,
    /// The number of calls around those.
    pub more: usize,
}

/// Returns a text without secrets; nothing if it has none.
pub(super) type Clean = Box<dyn Fn(&str) -> Option<String>>;

/// A look that is to be taken.
pub(super) struct Watch {
    key: StepKey,
    clean: Clean,
    seen: Option<Moment>,
}

impl ScriptFlow {
    /// Watches for the moment when the flow asks for a step. Texts are shown as `clean` returns them.
    pub fn watch(&mut self, key: StepKey, clean: impl Fn(&str) -> Option<String> + 'static) {
        self.watch = Some(Box::new(Watch { key, clean: Box::new(clean), seen: None }));
    }

    /// Returns true if that moment has come.
    pub fn has_seen(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.seen.is_some())
    }

    /// Takes the moment, if it has come.
    pub fn moment(&mut self) -> Option<Moment> {
        self.watch.take()?.seen
    }

    /// Takes the look if this is the step that is watched for. All branches are halted now.
    pub(super) fn asks(&mut self, id: Id, key: &StepKey) {
        if self.watch.as_ref().is_none_or(|watch| watch.key != *key || watch.seen.is_some()) {
            return;
        }
        let Some(mut watch) = self.watch.take() else { return };
        watch.seen = Some(self.look(id, &*watch.clean));
        self.watch = Some(watch);
    }

    fn look(&self, id: Id, clean: &dyn Fn(&str) -> Option<String>) -> Moment {
        let mut order = vec![id];
        while let Some(Home::Join(join, _)) =
            order.last().and_then(|id| self.tree.branches.get(id)).map(|it| it.home)
            && let Some(join) = self.tree.joins.get(&join)
            && !order.contains(&join.parent)
        {
            order.push(join.parent);
        }
        let mut others: Vec<Id> = self.tree.branches.keys().copied().collect();
        others.retain(|id| !order.contains(id));
        others.sort_unstable();
        order.extend(others);
        let library = library(&self.vm.entries.swarm);
        let mut room = GlanceRoom::new(clean, &library);
        let more = order.len().saturating_sub(BRANCHES);
        let branches = order.into_iter().take(BRANCHES).filter_map(|id| {
            let branch = self.tree.branches.get(&id)?;
            let (frames, more) = branch.co.stack(&mut room);
            // One that has not begun, and a flow that is a table, have no calls.
            (!frames.is_empty()).then(|| BranchStack {
                name: self.name_of(branch.home),
                scope: branch.scope.clone(),
                waits: branch.waits.clone(),
                frames,
                more,
            })
        });
        Moment { branches: branches.collect(), more }
    }
}

/// Returns the addresses of the library's own tables with their names.
fn library(swarm: &Table) -> HashMap<*const c_void, String> {
    let parts = swarm.pairs::<String, Value>().filter_map(Result::ok);
    let parts = parts.filter_map(|(name, value)| match value {
        Value::Table(part) => Some((part.to_pointer(), format!("swarm.{name}"))),
        _ => None,
    });
    parts.chain([(swarm.to_pointer(), "swarm".to_owned())]).collect()
}
