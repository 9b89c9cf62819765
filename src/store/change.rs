//! Changes of state that rest on what is stored: conditions on a revision, reducers, links.
//!
//! Owns what a change does to a value, as pure functions; both adapters plan a batch with them
//! inside the transaction that writes it, so that nothing comes between the read and the write.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{StateRow, StoreError};
use crate::protocol::{MemoryLink, StoreOptions};

/// What becomes of the value that is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reducer {
    /// The new value takes its place.
    #[default]
    Overwrite,
    /// The new value becomes the last element of the array that is there.
    Append,
    /// The members of the new object are laid over those of the object that is there; null removes
    /// one.
    Merge,
    /// The new number is added to the one that is there.
    Sum,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq)]
pub struct StateChange {
    /// The scope's text.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The revision that the value must have; 0 for none. Else [`StoreError::Revision`].
    pub if_revision: Option<u64>,
    /// What to do.
    pub act: StateAct,
}

/// What to do with a key.
#[derive(Debug, Clone, PartialEq)]
pub enum StateAct {
    /// Write a value.
    Put {
        /// JSON.
        value: String,
        /// What becomes of the value that is there.
        reducer: Reducer,
        /// What the write says about its value. A reducer other than `Overwrite` keeps what is not
        /// given.
        hints: StoreOptions,
    },
    /// Remove it, with its links.
    Delete,
    /// Link it to another key.
    Link {
        /// The other key.
        to: String,
        /// What the one is to the other.
        relation: String,
        /// JSON.
        metadata: Option<String>,
    },
    /// Remove a link to another key.
    Unlink {
        /// The other key.
        to: String,
        /// What the one is to the other.
        relation: String,
    },
}

impl StateAct {
    /// Writes a value over what is there.
    pub fn set(value: &Value, hints: StoreOptions) -> Self {
        Self::Put { value: value.to_string(), reducer: Reducer::Overwrite, hints }
    }

    /// Makes a link of the protocol, from its `from_key`.
    pub fn link(link: &MemoryLink) -> Self {
        Self::Link {
            to: link.to_key.clone(),
            relation: link.relation.clone(),
            metadata: link.metadata.as_ref().map(Value::to_string),
        }
    }
}

/// Changes that are made together, or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct StateBatch {
    /// The changes, in order; each sees those before it.
    pub changes: Vec<StateChange>,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The largest value that a reducer may leave, in bytes.
    pub most: usize,
    /// The (run, step) that they are made for: once, however often they are submitted.
    pub receipt: Option<(u64, u32)>,
    /// Where the answers are found once the batch is durable.
    pub answers: Answers,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The value's revision; 0 if there is none any more, and for links.
    pub revision: u64,
    /// The value that a reducer left: JSON.
    pub value: Option<String>,
}

/// Where the answers to a [`StateBatch`] are put, within its transaction.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<OnceLock<Vec<Changed>>>);

/// Two batches are the same by what they ask.
impl PartialEq for Answers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Answers {
    pub(super) fn give(&self, answers: Vec<Changed>) {
        // A batch is written once; its transaction may be tried again with the same answers.
        let _ = self.0.set(answers);
    }

    /// The answers, in the order of the changes; empty before the batch is durable.
    pub fn get(&self) -> &[Changed] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

/// A change as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Planned {
    Put { scope: String, key: String, value: String, hints: StoreOptions, expires_ms: Option<u64> },
    Delete { scope: String, key: String },
    Link { scope: String, from: String, to: String, relation: String, metadata: Option<String> },
    Unlink { scope: String, from: String, to: String, relation: String },
}

/// What a batch writes, and what it answers.
pub(crate) struct Plan {
    pub(crate) writes: Vec<Planned>,
    pub(crate) answers: Vec<Changed>,
}

/// What an overlay knows of a key.
type Seen = Option<(String, u64, StoreOptions, Option<u64>)>;

/// Plans a batch over what `read` finds.
pub(crate) fn plan<E: From<StoreError>>(
    batch: &StateBatch,
    mut read: impl FnMut(&str, &str) -> Result<Option<StateRow>, E>,
) -> Result<Plan, E> {
    let mut seen: BTreeMap<(&str, &str), Seen> = BTreeMap::new();
    let mut plan = Plan { writes: Vec::new(), answers: Vec::with_capacity(batch.changes.len()) };
    for change in &batch.changes {
        let (scope, key) = (change.scope.as_str(), change.key.as_str());
        if let StateAct::Link { .. } | StateAct::Unlink { .. } = &change.act
            && change.if_revision.is_none()
        {
            plan.writes.push(link(change));
            plan.answers.push(Changed { revision: 0, value: None });
            continue;
        }
        let before = match seen.remove(&(scope, key)) {
            Some(before) => before,
            None => match read(scope, key)? {
                Some(row) if row.is_live(batch.at_ms) => {
                    Some((row.value, row.revision, row.hints, row.expires_ms))
                }
                Some(_) => {
                    // What has expired is gone, and its revisions with it.
                    plan.writes.push(Planned::Delete { scope: scope.into(), key: key.into() });
                    None
                }
                None => None,
            },
        };
        let revision = before.as_ref().map_or(0, |(_, revision, ..)| *revision);
        if let Some(expected) = change.if_revision.filter(|expected| *expected != revision) {
            let key = key.to_owned();
            return Err(StoreError::Revision { key, expected, found: revision }.into());
        }
        let after = match &change.act {
            StateAct::Put { value, reducer, hints } => {
                let old = before.as_ref().map(|(value, ..)| value.as_str());
                let refused = |reason| StoreError::StateRefused { key: key.to_owned(), reason };
                let left = reduce(*reducer, old, value).map_err(refused)?;
                if left.len() > batch.most {
                    let reason = format!("{} bytes; {} are allowed", left.len(), batch.most);
                    return Err(refused(reason).into());
                }
                let own = hints.ttl.map(|ttl| batch.at_ms.saturating_add(ttl.as_millis()));
                let (hints, expires_ms) = match (*reducer, before) {
                    (Reducer::Overwrite, _) | (_, None) => (hints.clone(), own),
                    (_, Some((_, _, old, expires))) => (over(hints, old), own.or(expires)),
                };
                plan.writes.push(Planned::Put {
                    scope: scope.to_owned(),
                    key: key.to_owned(),
                    value: left.clone(),
                    hints: hints.clone(),
                    expires_ms,
                });
                let value = (*reducer != Reducer::Overwrite).then(|| left.clone());
                plan.answers.push(Changed { revision: revision + 1, value });
                Some((left, revision + 1, hints, expires_ms))
            }
            StateAct::Delete => {
                plan.writes.push(Planned::Delete { scope: scope.into(), key: key.into() });
                plan.answers.push(Changed { revision: 0, value: None });
                None
            }
            StateAct::Link { .. } | StateAct::Unlink { .. } => {
                plan.writes.push(link(change));
                plan.answers.push(Changed { revision, value: None });
                before
            }
        };
        seen.insert((scope, key), after);
    }
    Ok(plan)
}

fn link(change: &StateChange) -> Planned {
    let (scope, from) = (change.scope.clone(), change.key.clone());
    match &change.act {
        StateAct::Link { to, relation, metadata } => Planned::Link {
            scope,
            from,
            to: to.clone(),
            relation: relation.clone(),
            metadata: metadata.clone(),
        },
        StateAct::Unlink { to, relation } => {
            Planned::Unlink { scope, from, to: to.clone(), relation: relation.clone() }
        }
        StateAct::Put { .. } | StateAct::Delete => Planned::Delete { scope, key: from },
    }
}

fn over(new: &StoreOptions, old: StoreOptions) -> StoreOptions {
    StoreOptions {
        tier: new.tier.or(old.tier),
        lifetime: new.lifetime.or(old.lifetime),
        content_kind: new.content_kind.clone().or(old.content_kind),
        salience: new.salience.or(old.salience),
        ttl: new.ttl.or(old.ttl),
    }
}

/// The value that a reducer leaves, or why it leaves none.
///
/// # Errors
/// When the value that is there, or the new one, is not of the kind that the reducer takes.
pub fn reduce(reducer: Reducer, before: Option<&str>, value: &str) -> Result<String, String> {
    let before = before.filter(|before| *before != "null");
    match (reducer, before) {
        (Reducer::Overwrite, _) => Ok(value.to_owned()),
        (Reducer::Append, None) => Ok(format!("[{value}]")),
        (Reducer::Append, Some(list)) => {
            let items: Vec<&RawValue> =
                serde_json::from_str(list).map_err(|_| "it is not an array".to_owned())?;
            let open = list.trim_end().strip_suffix(']').unwrap_or_default();
            let comma = if items.is_empty() { "" } else { "," };
            Ok(format!("{open}{comma}{value}]"))
        }
        (Reducer::Merge, before) => {
            let object = |text: &str| match serde_json::from_str(text) {
                Ok(value @ Value::Object(_)) => Ok(value),
                _ => Err("it is not an object".to_owned()),
            };
            let patch = object(value).map_err(|_| "the new value is not an object".to_owned())?;
            let mut merged = object(before.unwrap_or("{}"))?;
            lay_over(&mut merged, &patch);
            Ok(merged.to_string())
        }
        (Reducer::Sum, before) => {
            let number = |text: &str| match serde_json::from_str(text) {
                Ok(Value::Number(number)) => Some(number),
                _ => None,
            };
            let by = number(value).ok_or("the new value is not a number")?;
            let old = number(before.unwrap_or("0")).ok_or("it is not a number")?;
            if let (Some(a), Some(b)) = (old.as_i64(), by.as_i64())
                && let Some(sum) = a.checked_add(b)
            {
                return Ok(sum.to_string());
            }
            let sum = old.as_f64().unwrap_or(f64::NAN) + by.as_f64().unwrap_or(f64::NAN);
            number_text(sum).ok_or_else(|| "the sum is not a number".to_owned())
        }
    }
}

/// A finite number as JSON, an integral one as an integer.
pub fn number_text(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    let integral = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
    let text = if integral {
        format!("{value:.0}")
    } else {
        serde_json::Number::from_f64(value)?.to_string()
    };
    Some(if text == "-0" { "0".to_owned() } else { text })
}

/// Lays a patch over a value: members of objects one by one, null removes one, the rest replaces.
pub fn lay_over(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        value.clone_from(patch);
        return;
    };
    if !value.is_object() {
        *value = serde_json::json!({});
    }
    let Some(members) = value.as_object_mut() else { return };
    for (key, patch) in patch {
        if patch.is_null() {
            members.shift_remove(key);
        } else {
            lay_over(members.entry(key.clone()).or_insert(Value::Null), patch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced(reducer: Reducer, before: &[&str], value: &str) -> Result<String, String> {
        reduce(reducer, before.first().copied(), value)
    }

    #[test]
    fn an_array_grows_at_its_end_and_keeps_its_digits() {
        assert_eq!(reduced(Reducer::Append, &[], "1"), Ok("[1]".into()));
        assert_eq!(reduced(Reducer::Append, &["null"], "[2]"), Ok("[[2]]".into()));
        assert_eq!(reduced(Reducer::Append, &["[]"], "1"), Ok("[1]".into()));
        assert_eq!(reduced(Reducer::Append, &["[1.50, [2]] "], "3"), Ok("[1.50, [2],3]".into()));
    }

    #[test]
    fn a_sum_stays_an_integer_while_it_can() {
        assert_eq!(reduced(Reducer::Sum, &[], "2"), Ok("2".into()));
        assert_eq!(
            reduced(Reducer::Sum, &["9007199254740993"], "1"),
            Ok("9007199254740994".into())
        );
        assert_eq!(reduced(Reducer::Sum, &["0.5"], "0.5"), Ok("1".into()));
        assert_eq!(reduced(Reducer::Sum, &["1"], "-1.0"), Ok("0".into()));
    }

    #[test]
    fn a_merge_goes_into_objects_and_null_removes() {
        let merged =
            reduced(Reducer::Merge, &[r#"{"a":{"b":1,"c":2},"d":3}"#], r#"{"a":{"b":null,"e":4}}"#);
        assert_eq!(merged, Ok(r#"{"a":{"c":2,"e":4},"d":3}"#.into()));
        assert_eq!(reduced(Reducer::Merge, &[], r#"{"a":null,"b":1}"#), Ok(r#"{"b":1}"#.into()));
    }

    #[test]
    fn what_a_reducer_does_not_take_is_refused_with_the_reason() {
        for (reducer, before, value, reason) in [
            (Reducer::Append, "{}", "1", "it is not an array"),
            (Reducer::Sum, "\"1\"", "1", "it is not a number"),
            (Reducer::Sum, "1", "true", "the new value is not a number"),
            (Reducer::Sum, "1e308", "1e308", "the sum is not a number"),
            (Reducer::Merge, "[]", "{}", "it is not an object"),
            (Reducer::Merge, "{}", "[]", "the new value is not an object"),
        ] {
            assert_eq!(reduced(reducer, &[before], value), Err(reason.to_owned()));
        }
    }
}
