//! The expressions of a table flow: whether they parse, whether each name is set before, and what
//! a map goes over, as far as schemas tell.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::walk::{Known, Node, Walk};
use crate::blueprint::{
    check::value::{describe, is_function},
    diagnostics::{code, hint_for},
    expression::{self, Reading, has_slots},
    locate::pointer,
};

/// The facts of the run that expressions see as `run`.
const RUN: [&str; 3] = ["blueprint", "id", "trigger"];
/// Findings about names that are made: more than are shown.
const MOST: usize = 5_000;
/// Names that a hint chooses from.
const CANDIDATES: usize = 1_000;

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
        let names = match expression::required(text, reading) {
            Ok(names) => names,
            Err(error) => {
                let shown: String = text.chars().take(120).collect();
                let message = format!("\"{shown}\" in {what} does not parse: {}", error.message);
                return self.find(at, code::BAD_EXPRESSION, message, None);
            }
        };
        // Such a text had no finding before its names were told apart: stored versions stay good.
        let passed = text.contains("default(") || text.contains("defined");
        for name in names {
            self.name(&name, passed, at, what);
        }
    }

    fn name(&mut self, name: &str, passed: bool, at: &str, what: &str) {
        // The findings before it are enough, and each hint takes time.
        if self.errors >= MOST {
            return;
        }
        let is_full = self.checker.findings.len() >= MOST;
        let mut parts = name.split('.');
        let root = parts.next().unwrap_or(name);
        let Some(schema) = self.scope.names.get(root) else {
            if passed && is_full {
                return;
            }
            let known = self.scope.names.keys().map(String::as_str);
            let hint = hint_for(root, &known.take(CANDIDATES).collect::<Vec<_>>());
            let message = format!("{what} uses `{root}`, which nothing sets before it");
            return self.undefined(at, message, hint, !passed);
        };
        let Some(attribute) = parts.next() else { return };
        // Outputs are open: the key may be there all the same.
        let is_closed = root == "run" || (root == "input" && self.scope.has_input);
        let is_error = is_closed && !passed;
        let known: Vec<&str> = if root == "run" {
            RUN.to_vec()
        } else {
            let Some(names) = schema.as_deref().and_then(closed_names) else { return };
            if names.contains_key(attribute) {
                return;
            }
            names.keys().map(String::as_str).take(CANDIDATES).collect()
        };
        if known.contains(&attribute) || (is_full && !is_error) {
            return;
        }
        let hint = hint_for(attribute, &known);
        let message = format!("{what} uses `{root}.{attribute}`, which its schema does not have");
        self.undefined(at, message, hint, is_error);
    }

    fn undefined(&mut self, at: &str, message: String, hint: Option<String>, is_error: bool) {
        if is_error {
            return self.find(at, code::UNDEFINED_NAME, message, hint);
        }
        let mut finding = self.checker.at_value(at, code::UNDEFINED_NAME, message).warning();
        finding.hint = hint;
        self.checker.findings.push(finding);
    }

    /// A condition; says what it always is, if it is a constant.
    pub(super) fn condition(&mut self, node: &Node<'_>, key: &str, needed: bool) -> Option<bool> {
        let at = self.below(&node.at, key);
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
        let at = self.below(&node.at, "over");
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
    pub(super) fn schema_of(&self, value: &Value) -> Known {
        let kind = match value {
            Value::String(text) if has_slots(text) => {
                let inside = expression::expression_in(text, Reading::Slots)?;
                let path = expression::path(inside)?;
                // All of what a name has is not copied.
                return match self.scope.names.get(path) {
                    Some(whole) => whole.clone(),
                    None => self.scope.schema(path).cloned().map(Rc::new),
                };
            }
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "boolean",
            Value::Array(_) => "array",
            Value::Null | Value::Object(_) => return None,
        };
        Some(Rc::new(serde_json::json!({ "type": kind })))
    }
}

/// The keys that an object has by its schema, if that lists them.
fn closed_names(schema: &Value) -> Option<&Map<String, Value>> {
    const OPEN: [&str; 7] =
        ["$ref", "additionalProperties", "allOf", "anyOf", "if", "oneOf", "patternProperties"];
    let schema = schema.as_object()?;
    if OPEN.iter().any(|key| schema.get(*key).is_some_and(|value| *value != Value::Bool(false))) {
        return None;
    }
    (schema.get("type")? == "object").then_some(())?;
    schema.get("properties")?.as_object()
}
