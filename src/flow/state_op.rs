//! An operation on state. In the journal it is one flat object.
//!
//! serde reads a tagged enum through a buffer, and a value that is kept as raw text cannot be read
//! from one. So the object is read as a plain struct first and then converted.

use serde::{Deserialize, Deserializer, Serialize};

use crate::protocol::{ContentKind, DurationMs, Json, Lifetime, MemoryTier, StoreOptions};

/// An operation on state. Keys are UTF-8 text of at most 1,024 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", try_from = "Written")]
pub enum StateOp {
    /// Reads a value. Yields the value, or null.
    Get {
        /// The key.
        key: String,
    },
    /// Writes a value. Yields null.
    Set {
        /// The key.
        key: String,
        /// The value.
        value: Json,
        /// The condition, and hints about the value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opts: Option<Box<SetOpts>>,
    },
    /// Removes a key. Yields null, also if the key did not exist.
    Delete {
        /// The key.
        key: String,
    },
    /// Lists the keys with a prefix. Yields a sorted array of strings.
    List {
        /// The prefix; empty for all keys.
        prefix: String,
    },
    /// Adds to a number (0 if absent). Yields the sum.
    Add {
        /// The key.
        key: String,
        /// The summand.
        by: f64,
    },
    /// Appends to an array (empty if absent). Yields the array.
    Append {
        /// The key.
        key: String,
        /// The new last element.
        value: Json,
    },
    /// Merges members into an object. Yields the object.
    Merge {
        /// The key.
        key: String,
        /// The new members; null removes one.
        value: Json,
    },
    /// Searches for values that contain every word of a query. Yields an array of
    /// `{"key", "score", "snippet"}`, the best first.
    Search {
        /// The words.
        query: String,
        /// The maximum number of results.
        limit: usize,
        /// The prefix of the keys; empty for all keys.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
    /// Links a key to another. Yields null.
    Link {
        /// The source key.
        key: String,
        /// The target key.
        to: String,
        /// The relation of the source to the target.
        relation: String,
        /// Additional data.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Json>,
    },
    /// Removes a link. Yields null, also if the link did not exist.
    Unlink {
        /// The source key.
        key: String,
        /// The target key.
        to: String,
        /// The relation of the source to the target.
        relation: String,
    },
    /// Follows links. Yields the keys reached as an array of strings, the nearest first.
    Traverse {
        /// The key to start from.
        key: String,
        /// If set, only links of this relation are followed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        relation: Option<String>,
        /// The maximum number of links on a path.
        depth: u32,
    },
}

impl StateOp {
    /// Returns the approximate size of the payload in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Set { key, value, .. }
            | Self::Append { key, value }
            | Self::Merge { key, value } => key.len() + value.len(),
            Self::Link { key, metadata, .. } => key.len() + metadata.as_ref().map_or(0, Json::len),
            Self::Get { key }
            | Self::Delete { key }
            | Self::Add { key, .. }
            | Self::Unlink { key, .. }
            | Self::Traverse { key, .. } => key.len(),
            Self::List { prefix: text } | Self::Search { query: text, .. } => text.len(),
        }
    }
}

impl StateOp {
    /// Returns the name shown in the chain.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "state.get",
            Self::Set { .. } => "state.set",
            Self::Delete { .. } => "state.delete",
            Self::List { .. } => "state.list",
            Self::Add { .. } => "state.add",
            Self::Append { .. } => "state.append",
            Self::Merge { .. } => "state.merge",
            Self::Search { .. } => "state.search",
            Self::Link { .. } => "state.link",
            Self::Unlink { .. } => "state.unlink",
            Self::Traverse { .. } => "state.traverse",
        }
    }

    /// Returns the key or prefix that a grant must reach. Empty means every key.
    pub fn key(&self) -> &str {
        match self {
            Self::Get { key }
            | Self::Set { key, .. }
            | Self::Delete { key }
            | Self::List { prefix: key }
            | Self::Add { key, .. }
            | Self::Append { key, .. }
            | Self::Merge { key, .. }
            | Self::Link { key, .. }
            | Self::Unlink { key, .. }
            | Self::Search { prefix: key, .. } => key,
            // A traversal can return any key.
            Self::Traverse { .. } => "",
        }
    }

    /// Returns true if the operation changes nothing.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Get { .. } | Self::List { .. } | Self::Search { .. } | Self::Traverse { .. } => {
                true
            }
            Self::Set { .. }
            | Self::Delete { .. }
            | Self::Add { .. }
            | Self::Append { .. }
            | Self::Merge { .. }
            | Self::Link { .. }
            | Self::Unlink { .. } => false,
        }
    }

    /// Returns true if the operation needs the store even for the run's own state.
    pub fn needs_store(&self) -> bool {
        matches!(
            self,
            Self::Search { .. } | Self::Link { .. } | Self::Unlink { .. } | Self::Traverse { .. }
        )
    }
}

/// Options of a write.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOpts {
    /// The revision that the value must have; 0 if it must not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_revision: Option<u64>,
    /// The time to live in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// Hint: the lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
    /// Hint: the speed of access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<MemoryTier>,
    /// Hint: the kind of knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_kind: Option<ContentKind>,
    /// Hint: the importance, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
}

impl SetOpts {
    /// Returns the hints for the store.
    pub fn hints(&self) -> StoreOptions {
        StoreOptions {
            tier: self.tier,
            lifetime: self.lifetime,
            content_kind: self.content_kind.clone(),
            salience: self.salience,
            ttl: self.ttl.map(DurationMs::from_millis),
        }
    }
}

/// The fields of all operations.
#[derive(Deserialize)]
struct Written {
    op: String,
    key: Option<String>,
    #[serde(default, deserialize_with = "given")]
    value: Option<Json>,
    opts: Option<Box<SetOpts>>,
    prefix: Option<String>,
    by: Option<f64>,
    query: Option<String>,
    limit: Option<usize>,
    to: Option<String>,
    relation: Option<String>,
    #[serde(default, deserialize_with = "given")]
    metadata: Option<Json>,
    depth: Option<u32>,
}

/// Reads a value that is present, even if it is null.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

fn need<T>(part: Option<T>, name: &str) -> Result<T, String> {
    part.ok_or_else(|| format!("an operation on state without its {name}"))
}

impl TryFrom<Written> for StateOp {
    type Error = String;

    fn try_from(it: Written) -> Result<Self, String> {
        let key = |key| need(key, "key");
        let value = |value| need(value, "value");
        Ok(match it.op.as_str() {
            "get" => Self::Get { key: key(it.key)? },
            "set" => Self::Set { key: key(it.key)?, value: value(it.value)?, opts: it.opts },
            "delete" => Self::Delete { key: key(it.key)? },
            "list" => Self::List { prefix: need(it.prefix, "prefix")? },
            "add" => Self::Add { key: key(it.key)?, by: need(it.by, "by")? },
            "append" => Self::Append { key: key(it.key)?, value: value(it.value)? },
            "merge" => Self::Merge { key: key(it.key)?, value: value(it.value)? },
            "search" => Self::Search {
                query: need(it.query, "query")?,
                limit: need(it.limit, "limit")?,
                prefix: it.prefix.unwrap_or_default(),
            },
            "link" => Self::Link {
                key: key(it.key)?,
                to: need(it.to, "to")?,
                relation: need(it.relation, "relation")?,
                metadata: it.metadata,
            },
            "unlink" => Self::Unlink {
                key: key(it.key)?,
                to: need(it.to, "to")?,
                relation: need(it.relation, "relation")?,
            },
            "traverse" => Self::Traverse {
                key: key(it.key)?,
                relation: it.relation,
                depth: need(it.depth, "depth")?,
            },
            other => return Err(format!("there is no operation on state {other:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_read_as_it_was_written() {
        let json = |text: &str| Json::parse(text).unwrap();
        let key = || "k".to_owned();
        let opts = SetOpts { ttl: Some(5), ..SetOpts::default() };
        let (to, relation) = ("l".to_owned(), "near".to_owned());
        let link = |metadata| StateOp::Link {
            key: key(),
            to: to.clone(),
            relation: relation.clone(),
            metadata,
        };
        for op in [
            StateOp::Get { key: key() },
            StateOp::Set { key: key(), value: json(r#"{"b":1, "a":[1.50]}"#), opts: None },
            StateOp::Set { key: key(), value: json("null"), opts: Some(Box::new(opts)) },
            StateOp::Delete { key: key() },
            StateOp::List { prefix: String::new() },
            StateOp::Add { key: key(), by: 1.5 },
            StateOp::Append { key: key(), value: json("[]") },
            StateOp::Merge { key: key(), value: json("{}") },
            StateOp::Search { query: "a b".into(), limit: 3, prefix: String::new() },
            StateOp::Search { query: "a b".into(), limit: 3, prefix: "n/".into() },
            link(None),
            link(Some(json(r#"{"by": "foot"}"#))),
            StateOp::Unlink { key: key(), to: to.clone(), relation: relation.clone() },
            StateOp::Traverse { key: key(), relation: None, depth: 2 },
            StateOp::Traverse { key: key(), relation: Some(relation.clone()), depth: 2 },
        ] {
            let written = Json::encode(&op).unwrap();
            assert_eq!(written.decode::<StateOp>().unwrap(), op, "{}", written.as_str());
        }
    }

    #[test]
    fn what_is_no_operation_says_what_it_lacks() {
        for (text, why) in [
            (r#"{"op":"set","key":"k"}"#, "without its value"),
            (r#"{"op":"get"}"#, "without its key"),
            (r#"{"op":"turn","key":"k"}"#, "no operation on state \"turn\""),
        ] {
            let error = Json::parse(text).unwrap().decode::<StateOp>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let scoped = Json::parse(r#"{"op":"get","key":"k","scope":"global"}"#).unwrap();
        assert_eq!(scoped.decode::<StateOp>().unwrap(), StateOp::Get { key: "k".into() });
    }
}
