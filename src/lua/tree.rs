//! The branches of a flow and the joins that hold them together.
//!
//! Owns who waits for what. Branches and joins are numbered in the order in which they were made
//! and looked at only by number, so that the order of everything follows from the inputs alone.

use std::collections::{BTreeMap, HashMap};

use super::raw::Coroutine;
use crate::{
    flow::Command,
    journal::{KeyHash, ScopePath, StepKey},
};

/// Numbers a branch, a join or a spawned function; never used twice.
pub(crate) type Id = u64;

/// A coroutine of the flow.
pub(crate) struct Branch {
    pub(crate) co: Coroutine,
    pub(crate) scope: ScopePath,
    /// The next free index of its scope.
    pub(crate) next: u32,
    pub(crate) home: Home,
    /// The join that it waits in.
    pub(crate) join: Option<Id>,
    /// The step that it waits for.
    pub(crate) waits: Option<StepKey>,
    /// The functions that it spawned, and those that its finished branches left behind.
    pub(crate) spawned: Vec<Id>,
}

/// The receiver of a branch's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The flow itself.
    Flow,
    /// A join, in which it has this number.
    Join(Id, u32),
    /// A spawned function.
    Spawned(Id),
    /// A deferred function.
    Defer,
}

/// The condition for the end of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinKind {
    /// All have ended, or one has failed.
    All,
    /// With the first that succeeds, or the last error.
    Race,
    /// With its one branch, or its timer.
    Timeout,
}

/// A branch that waits for others.
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    pub(crate) parent: Id,
    pub(crate) scope: ScopePath,
    pub(crate) index: u32,
    pub(crate) total: u32,
    /// The number of branches that it may have begun.
    pub(crate) due: u32,
    /// The number that it has begun.
    pub(crate) born: u32,
    pub(crate) open: BTreeMap<u32, Id>,
    pub(crate) timer: Option<StepKey>,
}

/// A function that runs beside the flow.
pub(crate) struct Spawned {
    pub(crate) branch: Option<Id>,
    pub(crate) waiters: Vec<Id>,
    pub(crate) end: Option<BranchEnd>,
    pub(crate) awaited: bool,
}

/// The end of a spawned function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BranchEnd {
    Returned,
    /// With the error's text, if it is kept: see [`UNHEARD`].
    Raised(Option<String>),
    Canceled,
}

/// The maximum number of spawned functions of a flow that failed and that nobody awaited, whose errors
/// are kept.
pub(crate) const UNHEARD: usize = 100;

/// The receiver of a step's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    Branch(Id),
    /// The timer of a join.
    Timer(Id),
}

/// Everything that is going on in a flow.
#[derive(Default)]
pub(crate) struct Tree {
    last: Id,
    pub(crate) branches: HashMap<Id, Branch, KeyHash>,
    pub(crate) joins: HashMap<Id, Join, KeyHash>,
    /// The spawned functions that have not returned.
    pub(crate) spawned: BTreeMap<Id, Spawned>,
    /// The number of their errors that are kept.
    unheard: usize,
    pub(crate) waiting: HashMap<StepKey, Waiter, KeyHash>,
}

impl Tree {
    pub(crate) fn id(&mut self) -> Id {
        self.last += 1;
        self.last
    }

    /// Puts a coroutine into the tree.
    pub(crate) fn grow(&mut self, co: Coroutine, scope: ScopePath, next: u32, home: Home) -> Id {
        let id = self.id();
        let spawned = Vec::new();
        let branch = Branch { co, scope, next, home, join: None, waits: None, spawned };
        self.branches.insert(id, branch);
        id
    }

    /// Takes the next index of a branch's scope.
    pub(crate) fn take_key(&mut self, id: Id) -> Option<StepKey> {
        let branch = self.branches.get_mut(&id)?;
        let key = StepKey::new(branch.scope.clone(), branch.next);
        branch.next += 1;
        Some(key)
    }

    /// Lets a branch wait for a step.
    pub(crate) fn park(&mut self, id: Id, key: StepKey) {
        if let Some(branch) = self.branches.get_mut(&id) {
            branch.waits = Some(key.clone());
            self.waiting.insert(key, Waiter::Branch(id));
        }
    }

    /// Takes an ended branch out; what it spawned goes on, in the care of `heir`.
    pub(crate) fn retire(&mut self, id: Id, heir: Option<Id>) -> Option<Branch> {
        let mut branch = self.branches.remove(&id)?;
        if let Some(heir) = heir.and_then(|heir| self.branches.get_mut(&heir)) {
            branch.spawned.retain(|it| self.spawned.contains_key(it));
            heir.spawned.append(&mut branch.spawned);
        }
        Some(branch)
    }

    /// Gives a branch up with all that hangs on it. Returns who waited for a spawned part of it.
    pub(crate) fn cancel(&mut self, id: Id, commands: &mut Vec<Command>) -> Vec<Id> {
        let mut orphans = Vec::new();
        if let Some(branch) = self.branches.get(&id) {
            commands.push(Command::CancelScope(branch.scope.clone()));
        }
        let mut doomed = vec![id];
        while let Some(id) = doomed.pop() {
            let Some(branch) = self.branches.remove(&id) else { continue };
            if let Some(key) = branch.waits {
                self.waiting.remove(&key);
            }
            if let Some(join) = branch.join.and_then(|join| self.joins.remove(&join)) {
                doomed.extend(join.open.into_values().rev());
                if let Some(key) = join.timer {
                    self.waiting.remove(&key);
                }
            }
            for id in branch.spawned.into_iter().rev() {
                doomed.extend(self.end_spawned(id, BranchEnd::Canceled, &mut orphans));
            }
        }
        orphans
    }

    /// Returns true if this flow has used a number.
    pub(crate) fn has_given(&self, id: Id) -> bool {
        (1..=self.last).contains(&id)
    }

    /// Adds a spawned function, of a branch.
    pub(crate) fn add_spawned(&mut self, by: Id, id: Id, branch: Id) {
        let spawned =
            Spawned { branch: Some(branch), waiters: Vec::new(), end: None, awaited: false };
        self.spawned.insert(id, spawned);
        let Some(by) = self.branches.get_mut(&by) else { return };
        if by.spawned.len() == by.spawned.capacity() {
            // A branch cancels what it spawned: only functions that have not returned.
            by.spawned.retain(|it| self.spawned.contains_key(it));
        }
        by.spawned.push(id);
    }

    /// Marks a spawned function as awaited, and drops its error, which its awaiter gets. Returns it, unless
    /// it has returned.
    pub(crate) fn hear(&mut self, id: Id) -> Option<&mut Spawned> {
        let spawned = self.spawned.get_mut(&id)?;
        spawned.awaited = true;
        if let Some(BranchEnd::Raised(text)) = &mut spawned.end
            && text.take().is_some()
        {
            self.unheard -= 1;
        }
        Some(spawned)
    }

    /// Notes how a spawned function ended, unless it has ended; gives its branch, if it still runs.
    pub(crate) fn end_spawned(
        &mut self,
        id: Id,
        end: BranchEnd,
        waiters: &mut Vec<Id>,
    ) -> Option<Id> {
        let spawned = self.spawned.get_mut(&id)?;
        if spawned.end.is_some() {
            return None;
        }
        waiters.append(&mut spawned.waiters);
        let branch = spawned.branch.take();
        spawned.end = Some(match end {
            BranchEnd::Returned => {
                self.spawned.remove(&id);
                return branch;
            }
            BranchEnd::Raised(_) if spawned.awaited || self.unheard == UNHEARD => {
                BranchEnd::Raised(None)
            }
            BranchEnd::Raised(text) => {
                self.unheard += 1;
                BranchEnd::Raised(text)
            }
            BranchEnd::Canceled => BranchEnd::Canceled,
        });
        branch
    }

    /// Ends a join before its time: its timer and its open branches are given up.
    pub(crate) fn dissolve(&mut self, join: Join, commands: &mut Vec<Command>) -> Vec<Id> {
        let mut orphans = Vec::new();
        for branch in join.open.into_values() {
            orphans.extend(self.cancel(branch, commands));
        }
        if let Some(key) = join.timer {
            self.waiting.remove(&key);
            commands.push(Command::CancelScope(key.scope));
        }
        orphans
    }
}
