//! Forms by which clients answer questions. They fill in flat objects of texts, numbers, booleans and
//! choices; an answer of any other schema is JSON in a field.

use rmcp::model::PrimitiveSchemaDefinition;
use serde_json::{Map, Value, json};

use super::answer::cut;

/// The maximum size of the text of a question, in bytes.
pub(super) const TEXT: usize = 8 << 10;
/// The field of an answer that is no flat object.
pub(super) const FIELD: &str = "answer";
/// The keywords of a field that clients know.
const KEYWORDS: [&str; 15] = [
    "type",
    "title",
    "description",
    "enum",
    "enumNames",
    "oneOf",
    "items",
    "default",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
];
/// The formats of texts that clients know.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The answer is a flat object.
    Flat,
    /// The answer is the one field.
    Field,
    /// The answer is the JSON in the one field.
    Text,
}

/// Returns the form of an answer with this schema, and the schema of the form.
pub(super) fn form_of(schema: &Value) -> (Form, Value) {
    if let Some(flat) = flat(schema) {
        return (Form::Flat, flat);
    }
    let (form, field) = match primitive(schema) {
        Some(field) => (Form::Field, field),
        None => {
            let mut description = "JSON".to_owned();
            if schema.is_object() {
                description.push_str(" with this schema: ");
                description.push_str(cut(&schema.to_string(), TEXT));
            }
            (Form::Text, json!({ "type": "string", "description": description }))
        }
    };
    (form, json!({ "type": "object", "properties": { FIELD: field }, "required": [FIELD] }))
}

fn flat(schema: &Value) -> Option<Value> {
    let properties = schema["properties"].as_object().filter(|_| schema["type"] == "object")?;
    let fields = properties.iter().map(|(name, field)| Some((name.clone(), primitive(field)?)));
    let fields: Map<String, Value> = fields.collect::<Option<_>>()?;
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&Value> = required.filter(|name| name.is_string()).collect();
    Some(json!({ "type": "object", "properties": fields, "required": required }))
}

/// Returns the schema of a field as clients know it, if they know one like it.
fn primitive(schema: &Value) -> Option<Value> {
    let kind = schema["type"].as_str()?;
    let is_choice = schema.get("enum").is_some() || schema.get("oneOf").is_some();
    let is_known = match kind {
        "string" => true,
        "number" | "integer" | "boolean" => !is_choice,
        "array" => schema.get("items").is_some(),
        _ => false,
    };
    if !is_known {
        return None;
    }
    let mut known = Map::new();
    for key in KEYWORDS {
        let Some(value) = schema.get(key) else { continue };
        if key != "format" || value.as_str().is_some_and(|it| FORMATS.contains(&it)) {
            known.insert(key.to_owned(), value.clone());
        }
    }
    let known = Value::Object(known);
    // What is read differently by the protocol would be shown differently than it is checked.
    let read: PrimitiveSchemaDefinition = serde_json::from_value(known.clone()).ok()?;
    (json!(read) == known).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_shown_with_their_titles() {
        let titled = json!([{ "const": "a", "title": "A" }, { "const": "b", "title": "B" }]);
        for field in [
            json!({ "type": "string", "enum": ["a", "b"], "default": "a" }),
            json!({ "type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"] }),
            json!({ "type": "string", "oneOf": titled }),
            json!({ "type": "array", "items": { "type": "string", "enum": ["a", "b"] }, "maxItems": 1 }),
            json!({ "type": "array", "items": { "anyOf": titled }, "default": ["a"] }),
            json!({ "type": "integer", "default": 30, "minimum": 1 }),
            json!({ "type": "number", "default": 95.5 }),
            json!({ "type": "boolean", "default": true, "title": "Sure" }),
            json!({ "type": "string", "maxLength": 3, "default": "x" }),
        ] {
            let (form, shown) = form_of(&field);
            assert_eq!((form, &shown["properties"][FIELD]), (Form::Field, &field));
            let object =
                json!({ "type": "object", "properties": { "x": field }, "required": ["x", 1] });
            let (form, shown) = form_of(&object);
            assert_eq!((form, &shown["properties"]["x"]), (Form::Flat, &field));
            assert_eq!(shown["required"], json!(["x"]));
        }
    }

    #[test]
    fn a_field_that_clients_would_misread_is_a_text() {
        for field in [
            json!({ "type": "string", "default": 5 }),
            json!({ "type": "string", "minLength": -1 }),
            json!({ "type": "string", "title": ["x"] }),
            json!({ "type": "string", "oneOf": [{ "pattern": "x" }] }),
            json!({ "type": "integer", "oneOf": [{ "const": "1", "title": "One" }] }),
            json!({ "type": "array", "items": { "type": "number" } }),
            json!({ "type": "array" }),
            json!({ "type": ["string", "null"] }),
        ] {
            assert_eq!(form_of(&field).0, Form::Text, "{field}");
        }
    }
}
