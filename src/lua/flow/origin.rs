//! The place in the source, and in the flow's branches, of a step that the flow waits for.
//!
//! Asked when a step is recorded for the first time. A replay never asks.

use super::ScriptFlow;
use crate::{
    journal::StepKey,
    lua::{
        raw::Coroutine,
        tree::{Home, JoinKind, Waiter},
    },
};

/// The enclosing branches that are named, the innermost ones.
const NAMED: usize = 4;
/// The longest name of a place, in bytes.
const TEXT: usize = 300;

/// The origin of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The line of the author's call: `file:line`.
    pub line: Option<String>,
    /// The node of a flow that is a table: its JSON pointer. There is no line then.
    pub node: Option<String>,
    /// The branches around it, the outermost first: `map, item 2 › race, branch 1`. Absent in the
    /// flow's own function.
    pub branch: Option<String>,
}

impl ScriptFlow {
    /// Returns the origin of a step that the flow waits for.
    pub fn origin(&self, key: &StepKey) -> Origin {
        let Some(waiter) = self.tree.waiting.get(key) else { return Origin::default() };
        let id = match waiter {
            Waiter::Branch(id) => Some(*id),
            Waiter::Timer(join) => self.tree.joins.get(join).map(|join| join.parent),
        };
        let Some(branch) = id.and_then(|id| self.tree.branches.get(&id)) else {
            return Origin::default();
        };
        let place = branch.co.place();
        let line = place.line.filter(|line| line.len() <= TEXT);
        let node = place.node.filter(|_| line.is_none());
        Origin { line, node, branch: self.name_of(branch.home) }
    }

    /// Returns the name of a branch with those around it.
    pub(super) fn name_of(&self, home: Home) -> Option<String> {
        let (mut names, mut at) = (Vec::new(), home);
        while names.len() < NAMED {
            let (name, parent) = match at {
                Home::Flow => break,
                Home::Spawned(_) => ("spawned function".to_owned(), None),
                Home::Defer => ("deferred function".to_owned(), None),
                Home::Join(id, number) => {
                    let Some(join) = self.tree.joins.get(&id) else { break };
                    let parent = self.tree.branches.get(&join.parent);
                    (named(join.kind, parent.map(|it| &it.co), number + 1), parent)
                }
            };
            names.push(name);
            let Some(parent) = parent else { break };
            at = parent.home;
        }
        names.reverse();
        (!names.is_empty()).then(|| names.join(" › "))
    }
}

/// Returns the name of a branch of a join. `number` counts from 1, as lists do in Lua.
fn named(kind: JoinKind, parent: Option<&Coroutine>, number: u32) -> String {
    match kind {
        JoinKind::Timeout => "timeout".to_owned(),
        JoinKind::Race => format!("race, branch {number}"),
        JoinKind::All => match parent.and_then(Coroutine::called).as_deref() {
            Some("map") => format!("map, item {number}"),
            _ => format!("all, branch {number}"),
        },
    }
}
