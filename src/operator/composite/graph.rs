//! Validates nested composites: existing members, no cycles, bounded depth.

use std::{collections::BTreeMap, sync::Arc};

use super::Composite;
use crate::{
    blueprint::did_you_mean,
    operator::main_ai::{KIND, MAIN_AI},
};

/// The maximum nesting depth of composites.
pub const MOST_DEPTH: usize = 8;

/// The reason why composites are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A member that does not exist.
    #[error("its member `{member}` is no operator{}", likely.as_ref().map_or(String::new(), |it| format!("; did you mean `{it}`?")))]
    Unknown {
        /// The composite.
        operator: String,
        /// The member.
        member: String,
        /// A similar name.
        likely: Option<String>,
    },
    /// A composite that contains itself.
    #[error("it is a member of itself: {}", way.join(" > "))]
    Cycle {
        /// The composite.
        operator: String,
        /// The path from the composite back to itself.
        way: Vec<String>,
    },
    /// Composites that are nested too deeply.
    #[error("more than {MOST_DEPTH} composites lie within each other: {}", way.join(" > "))]
    TooDeep {
        /// The composite.
        operator: String,
        /// The path from the composite down.
        way: Vec<String>,
    },
}

impl GraphError {
    /// Returns the invalid composite.
    pub fn operator(&self) -> &str {
        match self {
            Self::Unknown { operator, .. }
            | Self::Cycle { operator, .. }
            | Self::TooDeep { operator, .. } => operator,
        }
    }
}

/// Validates every composite; `others` are the names of all other operators.
///
/// # Errors
/// Returns the first member that does not exist, cycle, or nesting that is too deep.
pub fn check(composites: &BTreeMap<String, Composite>, others: &[&str]) -> Result<(), GraphError> {
    for (name, composite) in composites {
        let is_there = |name: &str| composites.contains_key(name) || others.contains(&name);
        let known =
            |member: &&Arc<str>| is_there(member) || ***member == *KIND && is_there(MAIN_AI);
        if let Some(member) = composite.members().iter().find(|member| !known(member)) {
            let names = composites.keys().map(String::as_str).chain(others.iter().copied());
            let likely = did_you_mean(member, names).map(str::to_owned);
            let (operator, member) = (name.clone(), member.to_string());
            return Err(GraphError::Unknown { operator, member, likely });
        }
    }
    let mut heights = BTreeMap::new();
    composites
        .keys()
        .try_for_each(|name| height(name, composites, &mut Vec::new(), &mut heights).map(|_| ()))
}

/// Returns the nesting depth of a composite, itself included. Each composite is visited once.
fn height<'a>(
    name: &'a str,
    composites: &'a BTreeMap<String, Composite>,
    way: &mut Vec<&'a str>,
    heights: &mut BTreeMap<&'a str, usize>,
) -> Result<usize, GraphError> {
    let Some(composite) = composites.get(name) else { return Ok(0) };
    let shown = |way: &[&str]| way.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    if let Some(at) = way.iter().position(|it| *it == name) {
        way.push(name);
        return Err(GraphError::Cycle { operator: name.to_owned(), way: shown(&way[at..]) });
    }
    if let Some(known) = heights.get(name) {
        return Ok(*known);
    }
    way.push(name);
    let mut own = 1;
    for member in composite.members() {
        own = own.max(1 + height(member, composites, way, heights)?);
        if own > MOST_DEPTH {
            let operator = way.first().copied().unwrap_or(name).to_owned();
            return Err(GraphError::TooDeep { operator, way: shown(way) });
        }
    }
    way.pop();
    heights.insert(name, own);
    Ok(own)
}
