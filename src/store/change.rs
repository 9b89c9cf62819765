//! Changes of state that depend on the stored value: conditions on a revision, reducers, links.
//!
//! Owns the effect of a change on a value, as pure functions. Both adapters use them to plan a
//! batch inside the transaction that writes it, so that no other write comes between the read and
//! the write.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, value::RawValue};

use super::{StateRow, StoreError};
use crate::protocol::{MemoryLink, StoreOptions};

/// The way in which a new value is combined with the stored one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reducer {
    /// The new value replaces the stored one.
    #[default]
    Overwrite,
    /// The new value is appended to the stored array.
    Append,
    /// The members of the new object are merged into the stored object. Null removes a member.
    Merge,
    /// The new number is added to the stored one.
    Sum,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateChange {
    /// The scope.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The revision that the value must have; 0 if it must not exist. Otherwise the batch fails
    /// with [`StoreError::Revision`].
    pub if_revision: Option<u64>,
    /// The action.
    pub act: StateAct,
}

/// The action on a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateAct {
    /// Writes a value.
    Put {
        /// JSON.
        value: String,
        /// The combination with the stored value.
        reducer: Reducer,
        /// Hints about the value. A reducer other than `Overwrite` keeps the stored hints that are
        /// not given.
        hints: StoreOptions,
    },
    /// Removes the key and its links.
    Delete,
    /// Links the key to another.
    Link {
        /// The target key.
        to: String,
        /// The relation of the key to the target.
        relation: String,
        /// JSON.
        metadata: Option<String>,
    },
    /// Removes a link to another key.
    Unlink {
        /// The target key.
        to: String,
        /// The relation of the key to the target.
        relation: String,
    },
}

impl StateAct {
    /// Returns a write that replaces the stored value.
    pub fn set(value: &Value, hints: StoreOptions) -> Self {
        Self::Put { value: value.to_string(), reducer: Reducer::Overwrite, hints }
    }

    /// Returns the creation of a link of the protocol. The link's `from_key` is the changed key.
    pub fn link(link: &MemoryLink) -> Self {
        Self::Link {
            to: link.to_key.clone(),
            relation: link.relation.clone(),
            metadata: link.metadata.as_ref().map(Value::to_string),
        }
    }
}

/// A set of changes that is applied as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateBatch {
    /// The changes, in order. Each sees the effects of those before it.
    #[serde(serialize_with = "serialize_changes", deserialize_with = "deserialize_changes")]
    pub changes: Vec<StateChange>,
    /// The time of the change, in Unix milliseconds.
    pub at_ms: u64,
    /// The maximum size in bytes of a value that a reducer may produce.
    pub most: usize,
    /// The (run, step) that requested the changes. They are applied once, however often the batch
    /// is submitted.
    pub receipt: Option<(u64, u32)>,
    /// Receives the answers when the batch is durable. Not serialized.
    #[serde(skip)]
    pub answers: Answers,
}

/// Serializes changes, with the bits of each salience in place of its digits: those may be read as the
/// number beside it.
fn serialize_changes<S: Serializer>(changes: &[StateChange], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(changes.iter().map(|change| match &change.act {
        StateAct::Put { hints: StoreOptions { salience: Some(salience), .. }, .. } => {
            let mut plain = change.clone();
            plain.set_salience(None);
            (Cow::Owned(plain), Some(salience.to_bits()))
        }
        StateAct::Put { .. }
        | StateAct::Delete
        | StateAct::Link { .. }
        | StateAct::Unlink { .. } => (Cow::Borrowed(change), None),
    }))
}

fn deserialize_changes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<StateChange>, D::Error> {
    let changes = Vec::<(StateChange, Option<u64>)>::deserialize(from)?.into_iter();
    let exact = changes.map(|(mut change, salience)| {
        change.set_salience(salience.map(f64::from_bits));
        change
    });
    Ok(exact.collect())
}

impl StateChange {
    fn set_salience(&mut self, salience: Option<f64>) {
        if let StateAct::Put { hints, .. } = &mut self.act {
            hints.salience = salience;
        }
    }
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The value's revision; 0 after a delete, and for links.
    pub revision: u64,
    /// The value produced by a reducer, as JSON.
    pub value: Option<String>,
}

/// A slot for the answers to a [`StateBatch`], filled within its transaction.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<OnceLock<Vec<Changed>>>);

/// Ignored when batches are compared.
impl PartialEq for Answers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Answers {
    pub(super) fn give(&self, answers: Vec<Changed>) {
        // Fails if the transaction is retried. The answers are then the same.
        let _ = self.0.set(answers);
    }

    /// Returns the answers, in the order of the changes; empty before the batch is durable.
    pub fn get(&self) -> &[Changed] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

/// A write that a change results in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Planned {
    Put { scope: String, key: String, value: String, hints: StoreOptions, expires_ms: Option<u64> },
    Delete { scope: String, key: String },
    Link { scope: String, from: String, to: String, relation: String, metadata: Option<String> },
    Unlink { scope: String, from: String, to: String, relation: String },
}

/// The writes and the answers of a batch.
pub(crate) struct Plan {
    pub(crate) writes: Vec<Planned>,
    pub(crate) answers: Vec<Changed>,
}

/// The current value of a key within a plan: value, revision, hints, expiry.
type Seen = Option<(String, u64, StoreOptions, Option<u64>)>;

/// Plans a batch. `read` returns the stored values.
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
                    // An expired value counts as removed, together with its revision.
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

/// Returns the value that a reducer produces.
///
/// # Errors
/// Returns the reason if the stored or the new value has the wrong type for the reducer.
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

/// Formats a finite number as JSON, and an integral one as an integer.
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

/// Merges a patch into a value: object members one by one, null removes a member, anything else
/// replaces.
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
