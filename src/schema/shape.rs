//! The additions of this host to JSON Schema: closed objects, defaults, and empty tables as arrays.

use serde_json::{Map, Value};

const MAX_DEPTH: u32 = 200;
const MAX_WORK: u32 = 1_000_000;

/// The maximum size of the defaults that are filled in, about as JSON, in bytes.
pub(super) const MAX_DEFAULTS: usize = 4 << 20;

/// Keywords that apply further schemas to the same value.
const APPLICATORS: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "not", "dependentSchemas"];

/// Closes every object schema that declares properties and says nothing about others.
///
/// If further schemas apply to the same object, their properties count as well, so the outer
/// one is closed as a whole and the inner ones are left open.
pub(super) fn close(schema: &mut Value) {
    // A definition that is a part of a composition must stay open, or the composition accepts
    // nothing.
    let composed = schema.get("allOf").is_some() || contains_key(schema, "allOf");
    close_one(schema, composed);
}

fn close_one(schema: &mut Value, composed: bool) {
    let Value::Object(object) = schema else {
        return;
    };
    let declares = object.contains_key("properties");
    if declares
        && !object.contains_key("additionalProperties")
        && !object.contains_key("unevaluatedProperties")
    {
        let applied = APPLICATORS.iter().any(|keyword| object.contains_key(*keyword));
        let keyword = if applied { "unevaluatedProperties" } else { "additionalProperties" };
        object.insert(keyword.to_owned(), Value::Bool(false));
    }
    for (keyword, inner) in object.iter_mut() {
        match keyword.as_str() {
            "properties" | "patternProperties" => each(inner, composed),
            "$defs" | "definitions" if !composed => each(inner, composed),
            "items" | "additionalProperties" => match inner {
                Value::Array(items) => items.iter_mut().for_each(|item| close_one(item, composed)),
                inner => close_one(inner, composed),
            },
            "anyOf" | "oneOf" if declares => {}
            "prefixItems" | "anyOf" | "oneOf" => {
                if let Value::Array(items) = inner {
                    items.iter_mut().for_each(|item| close_one(item, composed));
                }
            }
            _ => {}
        }
    }
}

fn each(schemas: &mut Value, composed: bool) {
    if let Value::Object(schemas) = schemas {
        schemas.values_mut().for_each(|schema| close_one(schema, composed));
    }
}

fn contains_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(object) => {
            object.contains_key(key) || object.values().any(|value| contains_key(value, key))
        }
        Value::Array(items) => items.iter().any(|value| contains_key(value, key)),
        _ => false,
    }
}

/// Fills in defaults and turns empty objects into arrays, as far as the schema is unambiguous:
/// alternatives (`anyOf`, `oneOf`) are left alone. Returns false if there are more defaults than
/// [`MAX_DEFAULTS`].
#[must_use]
pub(super) fn complete(value: &mut Value, document: &Value) -> bool {
    let mut completion = Completion { document, work: MAX_WORK, bytes: Some(MAX_DEFAULTS) };
    completion.one(value, document, MAX_DEPTH);
    completion.bytes.is_some()
}

/// A pass over a value. The bounds of depth and work are far beyond sensible schemas; they end the
/// walk through one whose references or defaults go in circles.
struct Completion<'d> {
    document: &'d Value,
    work: u32,
    /// The bytes that further defaults may have; `None` once one had more.
    bytes: Option<usize>,
}

impl<'d> Completion<'d> {
    fn one(&mut self, value: &mut Value, schema: &'d Value, depth: u32) {
        let Value::Object(schema) = schema else {
            return;
        };
        if depth == 0 || self.work == 0 || self.bytes.is_none() {
            return;
        }
        self.work -= 1;
        if value.as_object().is_some_and(Map::is_empty) && wants_array(schema) {
            *value = Value::Array(Vec::new());
        }
        if let Some(target) = schema.get("$ref").and_then(|target| local(target, self.document)) {
            self.one(value, target, depth - 1);
        }
        if let Some(Value::Array(parts)) = schema.get("allOf") {
            for part in parts {
                self.one(value, part, depth - 1);
            }
        }
        match value {
            Value::Object(object) => self.object(object, schema, depth - 1),
            Value::Array(items) => self.array(items, schema, depth - 1),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn object(
        &mut self,
        object: &mut Map<String, Value>,
        schema: &'d Map<String, Value>,
        depth: u32,
    ) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            if !object.contains_key(name)
                && let Some(default) = property.get("default")
            {
                let size = name.len() + MARKS + size(default);
                self.bytes = self.bytes.and_then(|left| left.checked_sub(size));
                if self.bytes.is_none() {
                    return;
                }
                object.insert(name.clone(), default.clone());
            }
            if let Some(value) = object.get_mut(name) {
                self.one(value, property, depth);
            }
        }
        if let Some(others @ Value::Object(_)) = schema.get("additionalProperties") {
            let declared = |name: &str| properties.is_some_and(|known| known.contains_key(name));
            for (_, value) in object.iter_mut().filter(|(name, _)| !declared(name)) {
                self.one(value, others, depth);
            }
        }
    }

    fn array(&mut self, items: &mut [Value], schema: &'d Map<String, Value>, depth: u32) {
        let first =
            schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = schema.get("items");
        for (index, item) in items.iter_mut().enumerate() {
            if let Some(schema) = first.get(index).or(rest) {
                self.one(item, schema, depth);
            }
        }
    }
}

/// The bytes of the marks around a key in JSON: two quotes, a colon and a comma.
const MARKS: usize = 4;

/// Returns about the size of a value as JSON, in bytes.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(object) => {
            2 + object.iter().map(|(name, it)| name.len() + MARKS + size(it)).sum::<usize>()
        }
    }
}

fn wants_array(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "array",
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "array") && names.iter().all(|name| name != "object")
        }
        _ => false,
    }
}

fn local<'d>(target: &Value, document: &'d Value) -> Option<&'d Value> {
    document.pointer(target.as_str()?.strip_prefix('#')?)
}
