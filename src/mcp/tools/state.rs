//! The stored state.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::blueprints::items;
use crate::{
    mcp::{
        answer::{Done, Trouble},
        transport::{Path, Transport},
    },
    protocol::text::counted,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    /// The scope: `global`, `run:<id>`, `session:<id>` or `custom:<name>`.
    scope: String,
    /// Words that a value must have; one that ends in `*` stands for all that begin like it.
    q: Option<String>,
    /// Only keys that begin like this.
    prefix: Option<String>,
    /// The key from which links are followed.
    from: Option<String>,
    /// With `from`: only along this relation.
    relation: Option<String>,
    /// The number of results: 1 to 100, 20 by default.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn search(transport: &dyn Transport, args: Search) -> Result<Done, Trouble> {
    let path = Path::new("/v1/state")
        .at(&args.scope)
        .with("q", args.q)
        .with("prefix", args.prefix)
        .with("from", args.from)
        .with("relation", args.relation)
        .with("limit", Some(args.limit.unwrap_or(20).clamp(1, 100)))
        .with("cursor", args.cursor);
    let value = transport.get(path).await?;
    let text = format!("{} of {}", counted(items(&value).count(), "key"), args.scope);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Get {
    /// The scope: `global`, `run:<id>`, `session:<id>` or `custom:<name>`.
    scope: String,
    /// The key.
    key: String,
}

pub(super) async fn get(transport: &dyn Transport, args: Get) -> Result<Done, Trouble> {
    let value = transport.get(Path::new("/v1/state").at(&args.scope).at(&args.key)).await?;
    let text = format!("{} of {}", args.key, args.scope);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    /// The scope: `global`, `run:<id>`, `session:<id>` or `custom:<name>`.
    scope: String,
    /// The key.
    key: String,
    /// The value: any JSON.
    value: Value,
    /// The way to combine it with the present value: overwrite (the default), append, merge or sum.
    reduce: Option<String>,
    /// The revision that the value must have, 0 for none; otherwise nothing is written.
    if_revision: Option<u64>,
}

pub(super) async fn set(transport: &dyn Transport, args: Set) -> Result<Done, Trouble> {
    let mut body = json!({ "value": args.value });
    for (key, value) in [
        ("reduce", args.reduce.map(Value::from)),
        ("if_revision", args.if_revision.map(Value::from)),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let value = transport.put(Path::new("/v1/state").at(&args.scope).at(&args.key), &body).await?;
    let text = format!("wrote {} of {}", args.key, args.scope);
    Ok(Done::new(value, text))
}
