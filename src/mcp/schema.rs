//! Output schemas of tools: a tool returns what its operation does.
//!
//! They are derived from the OpenAPI document, which takes longer than a client should wait for its
//! first list of tools. Therefore the derived schemas are a file of the source, `outputs.json`, and a
//! test compares the two.

use std::{collections::HashMap, sync::Arc};

use rmcp::model::JsonObject;

/// The schemas by the name of the tool.
const OUTPUTS: &str = include_str!("outputs.json");

/// Returns the output schemas by the name of the tool.
pub(super) fn outputs() -> HashMap<String, Arc<JsonObject>> {
    serde_json::from_str(OUTPUTS).expect("a test compares the file with the schemas")
}

#[cfg(test)]
mod tests;
