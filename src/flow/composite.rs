//! Composite operators: the choice of the members to start, and of the result.
//!
//! | rule | starts | completes with | fails |
//! |---|---|---|---|
//! | fallback | the first; after a failure the next | the first that completes | when all failed |
//! | race | all | the first that completes | when all failed |
//! | quorum | all | the first of `agree` with one value | when so many cannot agree any more |
//! | round robin | the one whose turn it is | that one | when that one fails |
//!
//! A member that failed before its dispatch counts as failed. Decisions depend only on the outcomes
//! of the members, in their recorded order.

use serde_json::Value;

use crate::{
    journal::Outcome,
    protocol::{Failure, Json, failure::kind},
};

/// The rule by which the members of a composite work together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// One after another, until one completes.
    Fallback,
    /// All at once. The first that completes wins, the others are canceled.
    Race,
    /// All at once, until `agree` of them return the same value.
    Quorum {
        /// The number of members that must agree.
        agree: u32,
        /// The part of the results that is compared.
        path: ValuePath,
    },
    /// One member per task, in turn.
    RoundRobin,
}

/// A path within a JSON value: `$` is the whole value; `verdict` and `$.review.verdict` are parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValuePath(Vec<String>);

/// A path that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read the path {0:?}: write names with dots between them, such as \"review.verdict\"")]
pub struct BadPath(String);

/// The next action of a composite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompositeAction {
    /// Wait until a member ends.
    Wait,
    /// Start this member, then ask for another turn.
    Begin(usize),
    /// Complete with this member's result.
    Complete(usize),
    /// Fail.
    Fail,
}

/// The progress of the members of a composite.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    members: Vec<Member>,
    /// The members that ended, in the order of their ends.
    ended: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq)]
enum Member {
    Idle,
    Open,
    Completed(Json),
    Failed(Failure),
}

impl Rule {
    /// Returns the name used in configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Fallback => "fallback",
            Self::Race => "race",
            Self::Quorum { .. } => "quorum",
            Self::RoundRobin => "round_robin",
        }
    }

    /// Returns the next action. `first` is the member whose turn it is, for round robin.
    pub fn turn(&self, course: &Course, first: usize) -> CompositeAction {
        match self {
            Self::Fallback => match (course.completed(), course.is_open(), course.idle()) {
                (Some(place), _, _) => CompositeAction::Complete(place),
                (None, true, _) => CompositeAction::Wait,
                (None, false, Some(place)) => CompositeAction::Begin(place),
                (None, false, None) => CompositeAction::Fail,
            },
            Self::Race => match (course.completed(), course.idle(), course.is_open()) {
                (Some(place), _, _) => CompositeAction::Complete(place),
                (None, Some(place), _) => CompositeAction::Begin(place),
                (None, None, true) => CompositeAction::Wait,
                (None, None, false) => CompositeAction::Fail,
            },
            Self::Quorum { agree, path } => course.vote(*agree as usize, path),
            Self::RoundRobin => match (course.completed(), course.is_open(), course.ended.len()) {
                (Some(place), _, _) => CompositeAction::Complete(place),
                (None, true, _) => CompositeAction::Wait,
                (None, false, 0) if !course.members.is_empty() => {
                    CompositeAction::Begin(first % course.members.len())
                }
                (None, false, _) => CompositeAction::Fail,
            },
        }
    }

    /// Returns the failure of a composite without a result. `names` are the names of its members.
    pub fn failure(&self, course: &Course, names: &[impl AsRef<str>]) -> Failure {
        let name = |place: usize| names.get(place).map_or("?", AsRef::as_ref);
        let ends: Vec<Value> = course
            .ended
            .iter()
            .map(|place| match &course.members[*place] {
                Member::Failed(failure) => serde_json::json!({
                    "operator": name(*place), "kind": failure.kind, "message": failure.message,
                }),
                Member::Idle | Member::Open | Member::Completed(_) => {
                    serde_json::json!({ "operator": name(*place), "kind": null })
                }
            })
            .collect();
        let last = course.ended.iter().rev().find_map(|place| match &course.members[*place] {
            Member::Failed(failure) => Some((*place, failure)),
            Member::Idle | Member::Open | Member::Completed(_) => None,
        });
        let failure = match (self, last) {
            (Self::Quorum { agree, path }, _) => {
                let most = course.groups(path).into_iter().map(|group| group.len()).max();
                let message = format!(
                    "{agree} of {} members must agree on {path}, and at most {} did",
                    names.len(),
                    most.unwrap_or(0)
                );
                Failure::new(kind::QUORUM, message)
            }
            (Self::RoundRobin, Some((_, failure))) => return failure.clone(),
            (Self::Fallback | Self::Race, Some((place, failure))) => {
                let message =
                    format!("every member failed, {} last: {}", name(place), failure.message);
                let retryable = failure.retryable;
                Failure { retryable, ..Failure::new(failure.kind.clone(), message) }
            }
            (Self::Fallback | Self::Race | Self::RoundRobin, None) => {
                Failure::new(kind::OPERATOR_UNAVAILABLE, "it has no members")
            }
        };
        failure.with_data(serde_json::json!({ "members": ends }).into())
    }
}

impl Course {
    /// Creates the course of a composite in which no member has started.
    pub fn new(members: usize) -> Self {
        Self { members: vec![Member::Idle; members], ended: Vec::new() }
    }

    /// Marks a member as started.
    pub fn begin(&mut self, place: usize) {
        if let Some(member) = self.members.get_mut(place) {
            *member = Member::Open;
        }
    }

    /// Records the outcome of a started member. Ignored if the member is unknown or has ended.
    pub fn end(&mut self, place: usize, outcome: Outcome) {
        let Some(member @ Member::Open) = self.members.get_mut(place) else { return };
        *member = match outcome {
            Outcome::Completed(output) => Member::Completed(output),
            Outcome::Failed(failure) => Member::Failed(failure),
            Outcome::Canceled(reason) => Member::Failed(Failure::new(kind::CANCELED, reason)),
        };
        self.ended.push(place);
    }

    /// Returns the approximate size in bytes of the recorded outcomes.
    pub fn size(&self) -> usize {
        let sizes = self.members.iter().map(|member| match member {
            Member::Idle | Member::Open => 0,
            Member::Completed(output) => output.len(),
            Member::Failed(failure) => failure.size(),
        });
        sizes.sum()
    }

    /// Iterates over the members that have started and not ended.
    pub fn open(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |(place, member): (usize, &Member)| (*member == Member::Open).then_some(place);
        self.members.iter().enumerate().filter_map(open)
    }

    /// Returns the result of a member that completed.
    pub fn output(&self, place: usize) -> Option<&Json> {
        match self.members.get(place)? {
            Member::Completed(output) => Some(output),
            Member::Idle | Member::Open | Member::Failed(_) => None,
        }
    }

    fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    fn idle(&self) -> Option<usize> {
        self.members.iter().position(|member| *member == Member::Idle)
    }

    fn completed(&self) -> Option<usize> {
        self.ended.iter().copied().find(|place| self.output(*place).is_some())
    }

    fn vote(&self, agree: usize, path: &ValuePath) -> CompositeAction {
        let groups = self.groups(path);
        if let Some(group) = groups.iter().find(|group| group.len() >= agree) {
            return CompositeAction::Complete(group[0]);
        }
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        let undecided = self.members.len() - self.ended.len();
        match self.idle() {
            _ if most + undecided < agree => CompositeAction::Fail,
            Some(place) => CompositeAction::Begin(place),
            None => CompositeAction::Wait,
        }
    }

    /// Groups the members whose values are the same, each group in the order of the ends. A member
    /// without a value at the path belongs to no group.
    fn groups(&self, path: &ValuePath) -> Vec<Vec<usize>> {
        let mut groups: Vec<(Value, Vec<usize>)> = Vec::new();
        for place in &self.ended {
            let Some(output) = self.output(*place).map(Json::to_value) else { continue };
            let Some(said) = path.of(&output) else { continue };
            match groups.iter_mut().find(|(value, _)| is_same(value, said)) {
                Some((_, group)) => group.push(*place),
                None => groups.push((said.clone(), vec![*place])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}

/// Returns true if two values are equal, where 1 equals 1.0 and the order of object members does
/// not matter.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

impl ValuePath {
    /// Iterates over the names of the path, from the outermost to the innermost.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns the part of a value at this path. For an array, a name is an index from 0.
    pub fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.segments().try_fold(value, |value, name| match value {
            Value::Object(members) => members.get(name),
            Value::Array(items) => items.get(name.parse::<usize>().ok()?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
    }
}

impl std::str::FromStr for ValuePath {
    type Err = BadPath;

    fn from_str(text: &str) -> Result<Self, BadPath> {
        let rest = match text.strip_prefix('$') {
            Some("") => return Ok(Self::default()),
            Some(rest) => rest.strip_prefix('.').unwrap_or(""),
            None => text,
        };
        let names: Vec<String> = rest.split('.').map(str::to_owned).collect();
        if text.len() > 1_000 || names.iter().any(String::is_empty) {
            return Err(BadPath(text.chars().take(100).collect()));
        }
        Ok(Self(names))
    }
}

impl std::fmt::Display for ValuePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("$")?;
        self.segments().try_for_each(|name| write!(f, ".{name}"))
    }
}

#[cfg(test)]
mod tests;
