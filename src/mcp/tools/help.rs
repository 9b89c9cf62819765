//! The documentation, and the state of the host.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::mcp::{
    answer::{Done, Trouble},
    docs,
    transport::{Path, Transport},
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    /// Words, names of functions, or an error code.
    query: String,
    /// The number of sections: 1 to 10, 4 by default.
    limit: Option<u32>,
}

pub(super) async fn search(_: &dyn Transport, args: Search) -> Result<Done, Trouble> {
    let limit = args.limit.unwrap_or(4).clamp(1, 10) as usize;
    let found = docs::search(&args.query, limit);
    let text = match found.len() {
        0 => "nothing found; try other words".to_owned(),
        _ => found.iter().map(|it| it.title()).collect::<Vec<_>>().join("\n"),
    };
    let sections: Vec<_> = found
        .iter()
        .map(|it| json!({ "page": it.page, "heading": it.heading, "text": it.text }))
        .collect();
    Ok(Done::new(json!({ "sections": sections }), text))
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Doctor {}

pub(super) async fn doctor(transport: &dyn Transport, _: Doctor) -> Result<Done, Trouble> {
    let host = transport.get(Path::new("/readyz")).await?;
    let you = transport.get(Path::new("/v1/whoami")).await?;
    let operators = transport.get(Path::new("/v1/operators")).await?;
    let text = format!("the host is {}, version {}", host["status"], host["version"]);
    Ok(Done::new(json!({ "host": host, "you": you, "operators": operators }), text))
}
