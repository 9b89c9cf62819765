//! Tests of the schemas: derives them from the OpenAPI document.

use std::{collections::BTreeSet, env, fs};

use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

use super::OUTPUTS;
use crate::{
    api,
    mcp::{tool::Output, tools},
};

const COMPONENTS: &str = "#/components/schemas/";

/// The OpenAPI document as a value.
pub(super) struct Document(Value);

impl Document {
    pub(super) fn new() -> Self {
        Self(serde_json::to_value(api::openapi()).expect("the document is plain data"))
    }

    /// Returns the schema of the success of an operation.
    ///
    /// # Panics
    /// When the operation does not exist or returns no JSON object: a test builds every tool.
    pub(super) fn output_of(&self, operation: &str) -> JsonObject {
        let schema = self.success(operation).unwrap_or_else(|| panic!("no answer of {operation}"));
        self.standing_alone(schema.clone())
    }

    /// Returns a schema of an object whose properties are answers of operations. A property
    /// without an operation is any value.
    pub(super) fn composed_of(&self, parts: &[(&str, Option<&str>)]) -> JsonObject {
        let mut properties = Map::new();
        for (name, operation) in parts {
            let schema = match operation {
                Some(operation) => self.success(operation).cloned(),
                None => Some(json!({})),
            };
            let schema = schema.unwrap_or_else(|| panic!("no answer for {name}"));
            properties.insert((*name).to_owned(), schema);
        }
        self.standing_alone(json!({ "type": "object", "properties": properties }))
    }

    fn success(&self, operation: &str) -> Option<&Value> {
        let paths = self.0["paths"].as_object()?.values();
        let mut operations = paths.filter_map(Value::as_object).flat_map(Map::values);
        let found = operations.find(|it| it["operationId"] == operation)?;
        let responses = found["responses"].as_object()?;
        let (_, response) = responses.iter().find(|(status, _)| status.starts_with('2'))?;
        Some(&response["content"]["application/json"]["schema"])
    }

    /// Returns a schema with the components that it refers to, in a form that every validator reads.
    fn standing_alone(&self, mut schema: Value) -> JsonObject {
        let (mut wanted, mut defs) = (BTreeSet::new(), Map::new());
        tidy(&mut schema, &mut wanted);
        while let Some(name) = wanted.pop_first() {
            if defs.contains_key(&name) {
                continue;
            }
            let mut part = self.0["components"]["schemas"][&name].clone();
            tidy(&mut part, &mut wanted);
            defs.insert(name, part);
        }
        // The root itself must be an object, so a reference is replaced by what it refers to.
        if let Some(name) = schema["$ref"].as_str().and_then(|it| it.strip_prefix("#/$defs/")) {
            schema = defs[name].clone();
        }
        let Value::Object(mut root) = schema else { panic!("a schema is an object") };
        root.insert("type".to_owned(), "object".into());
        if !defs.is_empty() {
            root.insert("$defs".to_owned(), Value::Object(defs));
        }
        root
    }
}

/// Rewrites references, and removes what only describes: formats that validators may not know,
/// texts and examples.
fn tidy(schema: &mut Value, wanted: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            // A property may have one of these names; its schema is an object.
            for noise in ["format", "example", "examples", "pattern", "description"] {
                if fields.get(noise).is_some_and(|it| !it.is_object()) {
                    fields.shift_remove(noise);
                }
            }
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(COMPONENTS).map(str::to_owned)
            {
                *reference = format!("#/$defs/{name}");
                wanted.insert(name);
            }
            fields.values_mut().for_each(|value| tidy(value, wanted));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl Output {
    fn schema(self, document: &Document) -> JsonObject {
        match self {
            Self::Of(operation) => document.output_of(operation),
            Self::Parts(parts) => document.composed_of(parts),
        }
    }
}

#[test]
fn the_schemas_of_the_file_are_those_of_the_document() {
    let document = Document::new();
    let lines = tools::all().iter().map(|(tool, _)| {
        format!("{}: {}", json!(tool.name), Value::Object(tool.output.schema(&document)))
    });
    let derived = format!("{{\n{}\n}}\n", lines.collect::<Vec<_>>().join(",\n"));
    if env::var_os("UPDATE_GOLDEN").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/mcp/outputs.json");
        fs::write(file, &derived).unwrap();
        return;
    }
    let advice = "an answer of the API changed: run this test with UPDATE_GOLDEN=1";
    assert!(derived == OUTPUTS, "src/mcp/outputs.json differs. {advice}");
}

#[test]
fn a_schema_of_the_document_stands_alone() {
    let schema = Value::Object(Document::new().output_of("run_get"));
    assert_eq!(schema["type"], "object");
    let text = schema.to_string();
    assert!(!text.contains(COMPONENTS), "{text}");
    assert!(schema["$defs"]["WaitingOn"].is_object(), "{text}");
    let composed = Document::new().composed_of(&[("run", Some("run_get")), ("rest", None)]);
    let composed = Value::Object(composed);
    assert_eq!(composed["properties"]["run"], json!({"$ref": "#/$defs/RunView"}));
    assert!(jsonschema::validator_for(&composed).is_ok());
}
