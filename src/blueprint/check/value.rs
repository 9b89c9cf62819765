//! Reading typed entries of a table, each with the finding that a wrong one gets.

use std::ops::RangeInclusive;

use rust_decimal::Decimal;
use serde_json::{Map, Value};

use super::checker::Checker;
use crate::{
    blueprint::{
        Budget,
        diagnostics::{code, hint_for},
        duration::{old_form, parse_duration, seconds_to_ms},
        edition::Edition,
        locate::pointer,
    },
    schema::Schema,
};

/// The pattern of durations.
const DURATIONS: &str =
    "write \"250ms\", \"90s\", \"20m\", \"1h30m\", \"2d\" or a number of seconds";

/// A Lua table with string keys, and where it stands.
pub(super) struct Table<'t> {
    map: &'t Map<String, Value>,
    at: String,
    what: String,
}

impl<'t> Table<'t> {
    pub fn new(value: &'t Value, at: &str, what: &str) -> Option<Self> {
        let map = value.as_object().filter(|_| !is_function(value))?;
        Some(Self { map, at: at.to_owned(), what: what.to_owned() })
    }

    /// The JSON pointer of the table.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// The name of the table, for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The JSON pointer of an entry.
    pub fn pointer(&self, key: &str) -> String {
        pointer(&self.at, key)
    }

    /// An entry that is there; null is absent.
    pub fn get(&self, key: &str) -> Option<&'t Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn entries(&self) -> impl Iterator<Item = (&'t String, &'t Value)> {
        self.map.iter()
    }
}

/// Returns true if a value stands for a Lua function.
pub(super) fn is_function(value: &Value) -> bool {
    value.get("$function").is_some()
}

/// Returns the type of a value, for messages.
pub(super) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) if is_function(value) => "a function",
        Value::Object(_) => "a table",
    }
}

impl Checker<'_> {
    /// Reports keys that do not exist, and those that a later release may support.
    pub fn known_keys(&mut self, table: &Table<'_>, known: &[&str], later: &[&str]) {
        for (key, _) in table.entries().filter(|(key, _)| !known.contains(&key.as_str())) {
            let at = pointer(table.at(), key);
            let what = table.what();
            let shown: String = key.chars().take(80).collect();
            let finding = if later.contains(&key.as_str()) {
                let message = format!("`{shown}` in {what} is not supported by this release");
                self.at_key(&at, code::NOT_SUPPORTED, message).hint("remove it")
            } else {
                let message = format!("unknown key `{shown}` in {what}");
                let mut finding = self.at_key(&at, code::UNKNOWN_KEY, message);
                finding.hint = hint_for(key, known);
                finding
            };
            self.findings.push(finding);
        }
    }

    pub fn missing(&mut self, table: &Table<'_>, key: &str, example: &str) {
        let message = format!("`{key}` is missing in {}", table.what());
        let finding = if table.at().is_empty() {
            self.at_value("", code::MISSING_KEY, message)
        } else {
            self.at_key(table.at(), code::MISSING_KEY, message)
        };
        self.findings.push(finding.hint(format!("add `{example}`")));
    }

    pub fn wrong_type(&mut self, table: &Table<'_>, key: &str, wanted: &str, found: &Value) {
        let message =
            format!("`{key}` in {} must be {wanted}, and is {}", table.what(), describe(found));
        let finding = self.at_value(&table.pointer(key), code::WRONG_TYPE, message);
        self.findings.push(finding);
    }

    pub fn table<'t>(&mut self, table: &Table<'t>, key: &str, what: &str) -> Option<Table<'t>> {
        let value = table.get(key)?;
        let found = Table::new(value, &table.pointer(key), what);
        if found.is_none() {
            self.wrong_type(table, key, "a table with names as keys", value);
        }
        found
    }

    pub fn text(&mut self, table: &Table<'_>, key: &str) -> Option<String> {
        match table.get(key)? {
            Value::String(text) => Some(text.clone()),
            other => {
                self.wrong_type(table, key, "a string", other);
                None
            }
        }
    }

    pub fn required_text(&mut self, table: &Table<'_>, key: &str) -> Option<String> {
        if table.get(key).is_none() {
            self.missing(table, key, &format!("{key} = \"…\""));
        }
        self.text(table, key)
    }

    pub fn boolean(&mut self, table: &Table<'_>, key: &str) -> Option<bool> {
        let value = table.get(key)?;
        if !value.is_boolean() {
            self.wrong_type(table, key, "true or false", value);
        }
        value.as_bool()
    }

    /// A list of strings; an empty table is an empty list.
    pub fn texts(&mut self, table: &Table<'_>, key: &str) -> Option<Vec<String>> {
        let value = table.get(key)?;
        let items = match value {
            Value::Array(items) => items.as_slice(),
            Value::Object(map) if map.is_empty() => &[],
            other => {
                self.wrong_type(table, key, "a list of strings", other);
                return None;
            }
        };
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if let Value::String(text) = item {
                texts.push(text.clone());
                continue;
            }
            let at = pointer(&table.pointer(key), &index.to_string());
            let message = format!(
                "item {} of `{key}` in {} must be a string, and is {}",
                index + 1,
                table.what(),
                describe(item)
            );
            let finding = self.at_value(&at, code::WRONG_TYPE, message);
            self.findings.push(finding);
        }
        Some(texts)
    }

    pub fn number(&mut self, table: &Table<'_>, key: &str) -> Option<f64> {
        let value = table.get(key)?;
        if !value.is_number() {
            self.wrong_type(table, key, "a number", value);
        }
        value.as_f64()
    }

    pub fn integer(
        &mut self,
        table: &Table<'_>,
        key: &str,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let number = self.number(table, key)?;
        let whole = number.fract() == 0.0;
        if whole && (f64::from(*range.start())..=f64::from(*range.end())).contains(&number) {
            return Some(number as u32);
        }
        let (from, to) = (range.start(), range.end());
        let message = format!(
            "`{key}` in {} must be a whole number from {from} to {to}, and is {number}",
            table.what()
        );
        let finding = self.at_value(&table.pointer(key), code::OUT_OF_RANGE, message);
        self.findings.push(finding);
        None
    }

    /// The entries `tokens` and `usd` of a table.
    pub fn amounts(&mut self, table: &Table<'_>) -> Budget {
        let tokens = self.integer(table, "tokens", 0..=u32::MAX).map(u64::from);
        Budget { tokens, usd: self.money(table, "usd") }
    }

    /// An amount of US dollars: a decimal text, or a number.
    pub fn money(&mut self, table: &Table<'_>, key: &str) -> Option<Decimal> {
        let text = match table.get(key)? {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => {
                self.wrong_type(table, key, "an amount such as \"2.50\"", other);
                return None;
            }
        };
        let amount = text.parse::<Decimal>().ok().filter(|amount| !amount.is_sign_negative());
        if amount.is_none() {
            let shown: String = text.chars().take(80).collect();
            let message = format!("`{key}` in {}: {shown} is no amount of money", table.what());
            let finding = self
                .at_value(&table.pointer(key), code::OUT_OF_RANGE, message)
                .hint("write it as a decimal text, \"2.50\", without a sign");
            self.findings.push(finding);
        }
        amount
    }

    /// A duration in milliseconds.
    pub fn duration(&mut self, table: &Table<'_>, key: &str) -> Option<u64> {
        let value = table.get(key)?;
        let read = match value {
            Value::String(text) => parse_duration(text).ok(),
            Value::Number(seconds) => seconds.as_f64().and_then(seconds_to_ms),
            other => {
                self.wrong_type(table, key, "a duration", other);
                if let Some(found) = self.findings.last_mut() {
                    found.hint = Some(DURATIONS.to_owned());
                }
                return None;
            }
        };
        if read.is_none() {
            let shown: String = value.to_string().chars().take(80).collect();
            let message = format!("`{key}` in {}: {shown} is not a duration", table.what());
            let finding = self.at_value(&table.pointer(key), code::BAD_DURATION, message);
            self.findings.push(finding.hint(DURATIONS));
        } else if let Some((why, instead)) = value.as_str().and_then(old_form) {
            let message = format!("`{key}` in {}: {value} {why}", table.what());
            let finding = self.at_value(&table.pointer(key), code::OLD_DURATION, message);
            let finding = finding.hint(format!("write \"{instead}\""));
            let refused = self.edition >= Edition::Two;
            self.findings.push(if refused { finding } else { finding.warning() });
        }
        read
    }

    /// A JSON Schema that compiles.
    pub fn schema(&mut self, table: &Table<'_>, key: &str, closed: bool) -> Option<Value> {
        let value = table.get(key)?;
        if !(value.is_object() || value.is_boolean()) || is_function(value) {
            self.wrong_type(table, key, "a schema", value);
            return None;
        }
        let at = table.pointer(key);
        if let Some(object) = value.as_object()
            && !object.is_empty()
            && !object.keys().any(|key| key.starts_with('$') || KEYWORDS.contains(&key.as_str()))
        {
            let message = format!("`{key}` in {} has none of JSON Schema's keywords", table.what());
            let finding = self.at_value(&at, code::BAD_SCHEMA, message);
            self.findings.push(finding.hint("did you mean `s.object { … }`?"));
            return None;
        }
        match Schema::compile_value(value.clone(), closed) {
            Ok(_) => Some(value.clone()),
            Err(error) => {
                let message = format!(
                    "`{key}` in {} is not a JSON Schema: at {}: {}",
                    table.what(),
                    error.path,
                    error.message
                );
                let inner = written_path(&at, &error.path);
                let finding = self.at_value(&inner, code::BAD_SCHEMA, message);
                self.findings.push(finding);
                None
            }
        }
    }
}

/// The entry of the source that a path in a schema most likely comes from: `s.object { a = … }`
/// writes `$.properties.a` as `a`.
fn written_path(at: &str, schema_path: &str) -> String {
    schema_path
        .split(['.', '['])
        .skip(1)
        .filter(|segment| !matches!(*segment, "properties" | "items"))
        .fold(at.to_owned(), |at, segment| pointer(&at, segment.trim_end_matches(']')))
}

/// The keywords that a schema without `$` keywords has at least one of.
const KEYWORDS: [&str; 47] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
];
