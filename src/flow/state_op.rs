//! An operation on state as the journal has it: one flat object.
//!
//! A tagged enum is read by way of a buffer, and a value that is kept as its text cannot be read out
//! of one. So the object is read as what it is, and then made an operation.

use serde::{Deserialize, Deserializer};

use super::{SetOpts, StateOp};
use crate::protocol::Json;

/// Everything that an operation may have.
#[derive(Deserialize)]
pub(super) struct Written {
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

/// A value that is there, also where it is null.
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
            "search" => {
                Self::Search { query: need(it.query, "query")?, limit: need(it.limit, "limit")? }
            }
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
            StateOp::Search { query: "a b".into(), limit: 3 },
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
