//! The expressions of a table flow: whether they parse, whether each name is set before, and what
//! a map goes over, as far as schemas tell.

use serde_json::Value;

use super::walk::{Node, Walk};
use crate::blueprint::{
    check::value::{describe, is_function},
    diagnostics::{code, hint_for},
    expression::{self, Reading, has_slots},
    locate::pointer,
};

/// The facts of the run that expressions see as `run`.
const RUN: [&str; 3] = ["blueprint", "id", "trigger"];

impl Walk<'_, '_, '_> {
    /// Checks the strings in a value that is filled in.
    pub(super) fn fill(&mut self, value: &Value, at: &str, what: &str) {
        match value {
            Value::String(text) if has_slots(text) => {
                self.expression(text, Reading::Slots, at, what);
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.fill(item, &pointer(at, &n.to_string()), what);
                }
            }
            Value::Object(_) if is_function(value) => {
                let message = format!("{what} has a function, and a node is plain data");
                let hint = "write an expression, or make the whole flow a function";
                self.find(at, code::WRONG_TYPE, message, Some(hint.into()));
            }
            Value::Object(map) => {
                for (key, part) in map {
                    self.fill(part, &pointer(at, key), what);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    pub(super) fn expression(&mut self, text: &str, reading: Reading, at: &str, what: &str) {
        let names = match expression::names(text, reading) {
            Ok(names) => names,
            Err(error) => {
                let shown: String = text.chars().take(120).collect();
                let message = format!("\"{shown}\" in {what} does not parse: {}", error.message);
                return self.find(at, code::BAD_EXPRESSION, message, None);
            }
        };
        for name in names {
            self.name(&name, text, at, what);
        }
    }

    fn name(&mut self, name: &str, text: &str, at: &str, what: &str) {
        let mut parts = name.split('.');
        let root = parts.next().unwrap_or(name);
        let set = self.scope.names.get(root);
        let forgiving = text.contains("default(") || text.contains("defined");
        let Some(schema) = set else {
            if forgiving {
                return;
            }
            let known: Vec<&str> = self.scope.names.keys().map(String::as_str).collect();
            let message = format!("{what} uses `{root}`, which nothing sets before it");
            return self.find(at, code::UNDEFINED_NAME, message, hint_for(root, &known));
        };
        let Some(attribute) = parts.next() else { return };
        let known: Vec<String> = if root == "run" {
            RUN.map(str::to_owned).to_vec()
        } else {
            let Some(names) = schema.as_ref().and_then(closed_names) else { return };
            names
        };
        if known.iter().any(|known| known == attribute) || forgiving {
            return;
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = format!("{what} uses `{root}.{attribute}`, which its schema does not have");
        let hint = hint_for(attribute, &known);
        if root == "run" || (root == "input" && self.scope.input.is_some()) {
            return self.find(at, code::UNDEFINED_NAME, message, hint);
        }
        // Outputs are open: the key may be there all the same.
        let mut finding = self.checker.at_value(at, code::UNDEFINED_NAME, message).warning();
        finding.hint = hint;
        self.checker.findings.push(finding);
    }

    /// A condition; says what it always is, if it is a constant.
    pub(super) fn condition(&mut self, node: &Node<'_>, key: &str, needed: bool) -> Option<bool> {
        let at = pointer(&node.at, key);
        match node.get(key) {
            None => {
                if needed {
                    self.missing(node, key);
                }
                None
            }
            Some(Value::Bool(constant)) => Some(*constant),
            Some(Value::String(text)) => {
                self.expression(text, Reading::Condition, &at, &node.what);
                match text.trim() {
                    "true" => Some(true),
                    "false" => Some(false),
                    _ => None,
                }
            }
            Some(other) => {
                let message = format!(
                    "`{key}` of {} must be a condition, and is {}",
                    node.what,
                    describe(other)
                );
                self.find(&at, code::WRONG_TYPE, message, None);
                None
            }
        }
    }

    /// Checks the list of a map, and returns the schema of an item.
    pub(super) fn over(&mut self, node: &Node<'_>) -> Option<Value> {
        let at = pointer(&node.at, "over");
        let schema = match node.get("over") {
            None => {
                self.missing(node, "over");
                return None;
            }
            Some(Value::String(text)) => {
                self.expression(text, Reading::Expression, &at, &node.what);
                self.scope.schema(expression::path(text)?)?
            }
            Some(value @ Value::Array(_)) => {
                self.fill(value, &at, &node.what);
                return None;
            }
            // An empty table may be meant as a list.
            Some(Value::Object(map)) if map.is_empty() => return None,
            Some(other) => {
                let message =
                    format!("`over` of {} must be a list, and is {}", node.what, describe(other));
                self.find(
                    &at,
                    code::NOT_A_LIST,
                    message,
                    Some("name a list: `over = \"plan.steps\"`".into()),
                );
                return None;
            }
        };
        match schema.get("type") {
            Some(Value::String(kind)) if kind != "array" => {
                let message =
                    format!("`over` of {} must be a list, and its schema says {kind}", node.what);
                self.find(&at, code::NOT_A_LIST, message, None);
                None
            }
            _ => schema.get("items").cloned(),
        }
    }

    /// The schema of a value that is set, where it is one that has a schema.
    pub(super) fn schema_of(&self, value: &Value) -> Option<Value> {
        match value {
            Value::String(text) if has_slots(text) => {
                let inside = expression::expression_in(text, Reading::Slots)?;
                self.scope.schema(expression::path(inside)?)
            }
            Value::String(_) => Some(serde_json::json!({ "type": "string" })),
            Value::Number(_) => Some(serde_json::json!({ "type": "number" })),
            Value::Bool(_) => Some(serde_json::json!({ "type": "boolean" })),
            Value::Array(_) => Some(serde_json::json!({ "type": "array" })),
            Value::Null | Value::Object(_) => None,
        }
    }
}

/// The keys that an object has by its schema, if that lists them.
fn closed_names(schema: &Value) -> Option<Vec<String>> {
    const OPEN: [&str; 7] =
        ["$ref", "additionalProperties", "allOf", "anyOf", "if", "oneOf", "patternProperties"];
    let schema = schema.as_object()?;
    if OPEN.iter().any(|key| schema.get(*key).is_some_and(|value| *value != Value::Bool(false))) {
        return None;
    }
    (schema.get("type")? == "object").then_some(())?;
    Some(schema.get("properties")?.as_object()?.keys().cloned().collect())
}
