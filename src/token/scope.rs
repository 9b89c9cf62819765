//! Scopes: the runs, tasks, operators, queues, state and blueprints that a token reaches.
//!
//! Without a scope of a kind, a token reaches nothing of that kind. `run:*` reaches every run, `*`
//! everything. A star within a name is refused.

mod text;

use serde::{Deserialize, Serialize};

use crate::protocol::{RunId, TaskId};

/// The kinds of targets of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScopeKind {
    /// Runs.
    Run,
    /// Tasks.
    Task,
    /// Operators.
    Operator,
    /// Queues.
    Queue,
    /// State.
    State,
    /// Blueprints.
    Blueprint,
}

impl ScopeKind {
    const ALL: [Self; 6] =
        [Self::Run, Self::Task, Self::Operator, Self::Queue, Self::State, Self::Blueprint];

    /// Returns the word before the colon.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Task => "task",
            Self::Operator => "operator",
            Self::Queue => "queue",
            Self::State => "state",
            Self::Blueprint => "blueprint",
        }
    }
}

/// All of a kind, or one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reach<T> {
    /// All.
    All,
    /// One.
    One(T),
}

/// The keys of one state scope that share a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StatePrefix {
    /// The state scope. Has no slash.
    pub scope: String,
    /// The prefix of the keys; empty for every key.
    pub prefix: String,
}

/// One target, or one kind of targets, that a token reaches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Everything of every kind.
    All,
    /// `run:<id>`.
    Run(Reach<RunId>),
    /// `task:<id>`.
    Task(Reach<TaskId>),
    /// `operator:<name>`.
    Operator(Reach<String>),
    /// `queue:<name>`.
    Queue(Reach<String>),
    /// `state:<scope>/<prefix>`.
    State(Reach<StatePrefix>),
    /// `blueprint:<name>`.
    Blueprint(Reach<String>),
}

/// The target of an act, which the token must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need<'a> {
    /// Everything of a kind: only `*` or the star of that kind covers it.
    Every(ScopeKind),
    /// One run.
    Run(RunId),
    /// One task.
    Task(TaskId),
    /// One operator.
    Operator(&'a str),
    /// One queue.
    Queue(&'a str),
    /// One key of state.
    State {
        /// The state scope.
        scope: &'a str,
        /// The key.
        key: &'a str,
    },
    /// One blueprint.
    Blueprint(&'a str),
}

/// A text that is not a valid scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?} as a scope: {reason}")]
pub struct ScopeError {
    /// The text, cut to 128 characters.
    pub text: String,
    /// The reason why it is invalid.
    pub reason: &'static str,
}

impl<T> Reach<T> {
    fn covers(&self, same: impl FnOnce(&T) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => same(one),
        }
    }

    fn contains(&self, inner: &Self, within: impl FnOnce(&T, &T) -> bool) -> bool {
        match (self, inner) {
            (Self::All, Self::All | Self::One(_)) => true,
            (Self::One(_), Self::All) => false,
            (Self::One(outer), Self::One(inner)) => within(outer, inner),
        }
    }
}

impl Scope {
    /// Returns true if this scope reaches the target of an act.
    pub fn covers(&self, need: &Need<'_>) -> bool {
        match (self, need) {
            (Self::All, _) => true,
            (_, Need::Every(kind)) => self.is_all_of(*kind),
            (Self::Run(reach), Need::Run(id)) => reach.covers(|own| own == id),
            (Self::Task(reach), Need::Task(id)) => reach.covers(|own| own == id),
            (Self::Operator(reach), Need::Operator(name)) => reach.covers(|own| own == name),
            (Self::Queue(reach), Need::Queue(name)) => reach.covers(|own| own == name),
            (Self::Blueprint(reach), Need::Blueprint(name)) => reach.covers(|own| own == name),
            (Self::State(reach), Need::State { scope, key }) => {
                reach.covers(|own| own.scope == *scope && key.starts_with(&own.prefix))
            }
            (
                Self::Run(_)
                | Self::Task(_)
                | Self::Operator(_)
                | Self::Queue(_)
                | Self::State(_)
                | Self::Blueprint(_),
                _,
            ) => false,
        }
    }

    /// Returns true if this scope reaches everything that `inner` reaches.
    pub fn contains(&self, inner: &Self) -> bool {
        match (self, inner) {
            (Self::All, _) => true,
            (Self::Run(own), Self::Run(inner)) => own.contains(inner, PartialEq::eq),
            (Self::Task(own), Self::Task(inner)) => own.contains(inner, PartialEq::eq),
            (Self::Operator(own), Self::Operator(inner))
            | (Self::Queue(own), Self::Queue(inner))
            | (Self::Blueprint(own), Self::Blueprint(inner)) => own.contains(inner, PartialEq::eq),
            (Self::State(own), Self::State(inner)) => own.contains(inner, |own, inner| {
                own.scope == inner.scope && inner.prefix.starts_with(&own.prefix)
            }),
            (
                Self::Run(_)
                | Self::Task(_)
                | Self::Operator(_)
                | Self::Queue(_)
                | Self::State(_)
                | Self::Blueprint(_),
                _,
            ) => false,
        }
    }

    fn is_all_of(&self, kind: ScopeKind) -> bool {
        match self {
            Self::All => true,
            Self::Run(reach) => kind == ScopeKind::Run && *reach == Reach::All,
            Self::Task(reach) => kind == ScopeKind::Task && *reach == Reach::All,
            Self::Operator(reach) => kind == ScopeKind::Operator && *reach == Reach::All,
            Self::Queue(reach) => kind == ScopeKind::Queue && *reach == Reach::All,
            Self::State(reach) => kind == ScopeKind::State && *reach == Reach::All,
            Self::Blueprint(reach) => kind == ScopeKind::Blueprint && *reach == Reach::All,
        }
    }
}

/// The scopes of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scopes(
    /// The scopes, in their original order.
    pub Vec<Scope>,
);

impl Scopes {
    /// Returns the scopes that reach everything.
    pub fn all() -> Self {
        Self(vec![Scope::All])
    }

    /// Returns the scopes that reach one task.
    pub fn task(id: TaskId) -> Self {
        Self(vec![Scope::Task(Reach::One(id))])
    }

    /// Returns true if any scope reaches the target of an act.
    pub fn cover(&self, need: &Need<'_>) -> bool {
        self.0.iter().any(|scope| scope.covers(need))
    }

    /// Returns true if each scope of `inner` is contained in one of these.
    pub fn contain(&self, inner: &Self) -> bool {
        inner.0.iter().all(|inner| self.0.iter().any(|own| own.contains(inner)))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
