//! The text form of scopes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{Need, Reach, Scope, ScopeError, ScopeKind, StatePrefix};

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(kind) => write!(f, "{}:*", kind.as_str()),
            Self::Run(id) => write!(f, "run:{id}"),
            Self::Task(id) => write!(f, "task:{id}"),
            Self::Operator(name) => write!(f, "operator:{name}"),
            Self::Queue(name) => write!(f, "queue:{name}"),
            Self::State { scope, key } => write!(f, "state:{scope}/{key}"),
            Self::Blueprint(name) => write!(f, "blueprint:{name}"),
        }
    }
}

impl fmt::Display for StatePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope, self.prefix)
    }
}

impl<T: fmt::Display> fmt::Display for Reach<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::One(one) => one.fmt(f),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Run(reach) => write!(f, "run:{reach}"),
            Self::Task(reach) => write!(f, "task:{reach}"),
            Self::Operator(reach) => write!(f, "operator:{reach}"),
            Self::Queue(reach) => write!(f, "queue:{reach}"),
            Self::State(reach) => write!(f, "state:{reach}"),
            Self::Blueprint(reach) => write!(f, "blueprint:{reach}"),
        }
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        parse(text).map_err(|reason| ScopeError { text: text.chars().take(128).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Scope, &'static str> {
    if text == "*" {
        return Ok(Scope::All);
    }
    let (word, rest) = text.split_once(':').ok_or("expected `kind:name`")?;
    let kind = ScopeKind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == word)
        .ok_or("the kinds are run, task, operator, queue, state and blueprint")?;
    Ok(match kind {
        ScopeKind::Run => Scope::Run(reach(rest, |id| id.parse().map_err(|_| "not a run's id"))?),
        ScopeKind::Task => {
            Scope::Task(reach(rest, |id| id.parse().map_err(|_| "not a task's id"))?)
        }
        ScopeKind::Operator => Scope::Operator(reach(rest, name)?),
        ScopeKind::Queue => Scope::Queue(reach(rest, name)?),
        ScopeKind::State => Scope::State(reach(rest, state_prefix)?),
        ScopeKind::Blueprint => Scope::Blueprint(reach(rest, name)?),
    })
}

fn reach<T>(
    text: &str,
    one: impl FnOnce(&str) -> Result<T, &'static str>,
) -> Result<Reach<T>, &'static str> {
    match text {
        "*" => Ok(Reach::All),
        "" => Err("the name is empty"),
        text if text.contains('*') => Err("a star stands alone"),
        text => one(text).map(Reach::One),
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    Ok(text.to_owned())
}

fn state_prefix(text: &str) -> Result<StatePrefix, &'static str> {
    let (scope, prefix) = text.split_once('/').ok_or("expected `state:scope/prefix`")?;
    if scope.is_empty() {
        return Err("the scope of state is empty");
    }
    Ok(StatePrefix { scope: scope.to_owned(), prefix: prefix.to_owned() })
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
