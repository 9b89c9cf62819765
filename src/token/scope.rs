//! What a token reaches: the runs, tasks, operators, queues, state and blueprints it is about.
//!
//! A token reaches nothing of a kind that none of its scopes names. `run:*` is every run and `*`
//! is everything; a star within a name has no meaning and is refused.

mod text;

use serde::{Deserialize, Serialize};

use crate::protocol::{RunId, TaskId};

/// The kinds of things that a scope can be about.
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

    /// The word before the colon.
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

/// All of a kind, or one of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reach<T> {
    /// All.
    All,
    /// One.
    One(T),
}

/// The keys of one scope of state that begin alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StatePrefix {
    /// The scope of state; it has no slash.
    pub scope: String,
    /// What the keys begin with; empty for every key.
    pub prefix: String,
}

/// One thing, or one kind of things, that a token reaches.
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

/// What an act touches; the token must reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need<'a> {
    /// Everything of a kind: an act that no single scope can cover.
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
        /// The scope of state.
        scope: &'a str,
        /// The key.
        key: &'a str,
    },
    /// One blueprint.
    Blueprint(&'a str),
}

/// A text that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?} as a scope: {reason}")]
pub struct ScopeError {
    /// What was given, cut to 128 characters.
    pub text: String,
    /// What is wrong with it.
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
    /// Whether a token with this scope reaches what an act touches.
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

    /// Whether everything that `inner` reaches is reached by this scope too.
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

/// Everything that a token reaches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scopes(
    /// The scopes, in the order in which they were given.
    pub Vec<Scope>,
);

impl Scopes {
    /// Everything.
    pub fn all() -> Self {
        Self(vec![Scope::All])
    }

    /// One task.
    pub fn task(id: TaskId) -> Self {
        Self(vec![Scope::Task(Reach::One(id))])
    }

    /// Whether any scope reaches what an act touches.
    pub fn cover(&self, need: &Need<'_>) -> bool {
        self.0.iter().any(|scope| scope.covers(need))
    }

    /// Whether everything that `inner` reaches is reached by one of these.
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
