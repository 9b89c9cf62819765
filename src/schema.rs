//! JSON Schemas of inputs and results: compiling, defaults, validation.
//!
//! Refuses references to anything outside of the schema itself; nothing is ever fetched.
//! `lua/` checks inputs with it, the engine and the worker API check results.

#![cfg(feature = "schemas")]

use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::protocol::Json;

mod shape;

/// Violations that are reported at most.
pub const MAX_VIOLATIONS: usize = 20;

const MAX_MESSAGE_CHARS: usize = 300;

/// The reason why a document is not a schema.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("compile the schema at {path}: {message}")]
pub struct SchemaError {
    /// The place in the schema, such as `$.properties.name`.
    pub path: String,
    /// The mistake there.
    pub message: String,
}

/// One place where a value does not match its schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The place in the value, such as `$.steps[2].name`.
    pub path: String,
    /// The mistake there.
    pub message: String,
}

/// Returns the first violation as the end of a sentence, such as ` at $.name: …`.
pub fn first_of(violations: &[Violation]) -> String {
    let first = violations.first();
    first.map_or_else(String::new, |it| format!(" at {}: {}", it.path, it.message))
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A compiled schema, cheap to clone.
#[derive(Debug, Clone)]
pub struct Schema(Option<Arc<Compiled>>);

#[derive(Debug)]
struct Compiled {
    document: Value,
    validator: Validator,
}

impl Schema {
    /// The schema that everything meets.
    pub fn any() -> Self {
        Self(None)
    }

    /// Returns true if every value is valid.
    pub fn is_any(&self) -> bool {
        self.0.is_none()
    }

    /// Compiles a document. With `closed`, an object that declares properties refuses others
    /// where the document does not say anything about them.
    ///
    /// # Errors
    /// When the document is not a valid schema, or refers to something outside of itself.
    pub fn compile(document: &Json, closed: bool) -> Result<Self, SchemaError> {
        Self::compile_value(document.to_value(), closed)
    }

    /// The same for a document that is already a tree.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn compile_value(mut document: Value, closed: bool) -> Result<Self, SchemaError> {
        if document == Value::Bool(true) || document.as_object().is_some_and(Map::is_empty) {
            return Ok(Self::any());
        }
        if closed {
            shape::close(&mut document);
        }
        let validator = jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex().size_limit(1 << 20))
            .build(&document)
            .map_err(|error| SchemaError {
                path: value_path(&document, error.instance_path().as_str()),
                message: bounded(&error.to_string()),
            })?;
        Ok(Self(Some(Arc::new(Compiled { document, validator }))))
    }

    /// Validates a value as it is.
    ///
    /// # Errors
    /// The first [`MAX_VIOLATIONS`] places where it does not.
    pub fn validate(&self, value: &Value) -> Result<(), Vec<Violation>> {
        let Some(compiled) = &self.0 else {
            return Ok(());
        };
        let violations: Vec<_> = compiled
            .validator
            .iter_errors(value)
            .take(MAX_VIOLATIONS)
            .map(|error| Violation {
                path: value_path(value, error.instance_path().as_str()),
                message: bounded(&error.to_string()),
            })
            .collect();
        if violations.is_empty() { Ok(()) } else { Err(violations) }
    }

    /// Takes a value as the schema means it: defaults are filled in, and an empty object where
    /// the schema says array (what a bare `{}` in Lua is) becomes an empty array.
    ///
    /// # Errors
    /// As [`Schema::validate`], after that; also if the defaults have more than 4 MiB.
    pub fn accept(&self, mut value: Value) -> Result<Value, Vec<Violation>> {
        let Some(compiled) = &self.0 else {
            return Ok(value);
        };
        if !shape::complete(&mut value, &compiled.document) {
            let message = format!("the defaults have more than {} bytes", shape::MAX_DEFAULTS);
            return Err(vec![Violation { path: "$".to_owned(), message }]);
        }
        self.validate(&value)?;
        Ok(value)
    }
}

/// A JSON pointer into `value` as a path that a person reads.
fn value_path(value: &Value, pointer: &str) -> String {
    let mut path = String::from("$");
    let mut at = Some(value);
    for segment in pointer.split('/').skip(1) {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        match at {
            Some(Value::Array(items)) => {
                path.push_str(&format!("[{segment}]"));
                at = segment.parse::<usize>().ok().and_then(|index| items.get(index));
            }
            other => {
                let plain = segment.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
                if plain && !segment.is_empty() {
                    path.push_str(&format!(".{segment}"));
                } else {
                    path.push_str(&format!("[{segment:?}]"));
                }
                at = other.and_then(|value| value.get(&segment));
            }
        }
    }
    path
}

/// A message of bounded length: the validator's quote the value, which may be megabytes.
fn bounded(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
