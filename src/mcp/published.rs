//! Blueprints as tools: those whose key `mcp` says so, and whose publisher may bring code.

use std::{collections::BTreeMap, sync::Arc};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::{
    answer::Trouble,
    tools,
    transport::{Path, Transport},
};
use crate::blueprint::ClientAbility;

/// A blueprint as a tool.
#[derive(Debug, Clone)]
pub(super) struct Published {
    /// The blueprint.
    pub(super) blueprint: String,
    /// The tool as the protocol shows it.
    pub(super) tool: Tool,
    /// The abilities that a client needs to call the tool.
    pub(super) needs: Vec<ClientAbility>,
    /// True if the input is one of the arguments, because it is no object.
    is_wrapped: bool,
}

/// Lists the blueprints that are tools.
pub(super) async fn all(transport: &dyn Transport) -> Result<Vec<Published>, Trouble> {
    Ok(of(&transport.get(Path::new("/v1/blueprints").with("tools", Some(true))).await?))
}

/// Returns those of the API's list that are tools. Where a name is taken, `run_` stands before it.
pub(super) fn of(listed: &Value) -> Vec<Published> {
    let mut found: BTreeMap<String, Published> = BTreeMap::new();
    for item in listed["items"].as_array().into_iter().flatten() {
        let (face, Some(blueprint)) = (&item["tool"], item["name"].as_str()) else { continue };
        let Some(name) = face["name"].as_str() else { continue };
        if face["prompt"] == true || face["uri"].is_string() {
            continue;
        }
        let is_taken = |name: &str| tools::is_own(name) || found.contains_key(name);
        let name = if is_taken(name) { format!("run_{name}") } else { name.to_owned() };
        if is_taken(&name) {
            continue;
        }
        let (schema, is_wrapped) = arguments(&item["input"]);
        let flag = |key: &str| face[key].as_bool();
        let annotations = ToolAnnotations::from_raw(
            Some(blueprint.to_owned()),
            flag("read_only"),
            flag("destructive"),
            flag("idempotent"),
            None,
        );
        let text = face["description"].as_str().unwrap_or_default().to_owned();
        let mut tool = Tool::new(name.clone(), text, Arc::new(schema));
        tool.title = Some(blueprint.to_owned());
        tool.output_schema = Some(Arc::new(output()));
        tool.annotations = Some(annotations);
        let blueprint = blueprint.to_owned();
        let needs = needs_of(face);
        found.insert(name, Published { blueprint, tool, needs, is_wrapped });
    }
    found.into_values().collect()
}

/// Returns what a client must offer.
pub(super) fn needs_of(face: &Value) -> Vec<ClientAbility> {
    serde_json::from_value(face["needs"].clone()).unwrap_or_default()
}

/// Returns the schema of the arguments for the schema of an input, and true if the input is one of
/// them. Arguments are an object.
fn arguments(input: &Value) -> (JsonObject, bool) {
    match input.as_object() {
        None => (object(json!({ "type": "object" })), false),
        Some(schema) if schema.get("type").is_some_and(|it| it == "object") => {
            (schema.clone(), false)
        }
        Some(schema) => {
            let mut schema = schema.clone();
            let definitions = schema.shift_remove("$defs");
            let mut whole = object(json!({
                "type": "object",
                "properties": { "input": schema },
                "required": ["input"],
                "additionalProperties": false,
            }));
            if let Some(definitions) = definitions {
                whole.insert("$defs".to_owned(), definitions);
            }
            (whole, true)
        }
    }
}

/// The schema of a result.
fn output() -> JsonObject {
    object(json!({
        "type": "object",
        "properties": {
            "run": { "type": "string", "description": "The run's id." },
            "status": { "type": "string", "description": "The run's status." },
            "output": { "description": "What the run returned, once it is completed." },
        },
        "required": ["run", "status"],
    }))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => map,
        _ => JsonObject::new(),
    }
}

impl Published {
    /// Returns the input of a run for the arguments of a call.
    pub(super) fn input(&self, arguments: JsonObject) -> Value {
        match self.is_wrapped {
            true => arguments.get("input").cloned().unwrap_or_default(),
            false => Value::Object(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_whatever_the_input_is() {
        let plain = json!({ "type": "object", "properties": { "who": { "type": "string" } } });
        assert_eq!(arguments(&plain), (object(plain.clone()), false));
        assert_eq!(arguments(&Value::Null), (object(json!({ "type": "object" })), false));
        let text = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "type": "string" } } });
        let (wrapped, is_wrapped) = arguments(&text);
        assert!(is_wrapped && wrapped["required"] == json!(["input"]));
        let validator = jsonschema::validator_for(&Value::Object(wrapped)).unwrap();
        assert!(validator.is_valid(&json!({ "input": "x" })));
        assert!(!validator.is_valid(&json!({ "input": 7 })) && !validator.is_valid(&json!({})));
    }
}
