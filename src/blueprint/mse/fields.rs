//! Reads the entries of foreign objects, and notices those that nobody asked for.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::{Map, Value};

use super::{lua::shown, report::ImportError};

/// An object of the foreign document, with its place.
pub(crate) struct Fields<'v> {
    map: &'v Map<String, Value>,
    at: String,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'v> Fields<'v> {
    pub(crate) fn new(value: &'v Value, at: impl Into<String>) -> Result<Self, ImportError> {
        let at = at.into();
        match value {
            Value::Object(map) => Ok(Self { map, at, asked: RefCell::default() }),
            other => {
                Err(ImportError::new(at, format!("an object is expected, not {}", kind(other))))
            }
        }
    }

    /// The place of an entry.
    pub(crate) fn at(&self, key: &str) -> String {
        let key = key.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
        match self.at.is_empty() {
            true => key,
            false => format!("{}.{key}", self.at),
        }
    }

    /// The place of the object itself.
    pub(crate) fn place(&self) -> &str {
        &self.at
    }

    /// An entry; a null counts as absent.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'v Value> {
        self.asked.borrow_mut().insert(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn need(&self, key: &'static str) -> Result<&'v Value, ImportError> {
        self.asked.borrow_mut().insert(key);
        self.map.get(key).ok_or_else(|| ImportError::new(&self.at, format!("`{key}` is missing")))
    }

    fn typed<T>(
        &self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || format!("{wanted} is expected, not {}", kind(value));
        read(value).map(Some).ok_or_else(|| ImportError::new(self.at(key), wrong()))
    }

    pub(crate) fn text(&self, key: &'static str) -> Result<Option<&'v str>, ImportError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn need_text(&self, key: &'static str) -> Result<&'v str, ImportError> {
        self.need(key)?;
        self.text(key)?.ok_or_else(|| ImportError::new(self.at(key), "a string is expected"))
    }

    pub(crate) fn truth(&self, key: &'static str) -> Result<Option<bool>, ImportError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn whole(&self, key: &'static str) -> Result<Option<u64>, ImportError> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    pub(crate) fn list(&self, key: &'static str) -> Result<&'v [Value], ImportError> {
        Ok(self.typed(key, "a list", Value::as_array)?.map_or(&[], Vec::as_slice))
    }

    pub(crate) fn texts(&self, key: &'static str) -> Result<Vec<String>, ImportError> {
        let read = |it: &Value| it.as_str().map(str::to_owned);
        let wrong = || ImportError::new(self.at(key), "a list of strings is expected");
        self.list(key)?.iter().map(|it| read(it).ok_or_else(wrong)).collect()
    }

    pub(crate) fn object(&self, key: &'static str) -> Result<Option<Self>, ImportError> {
        self.get(key).map(|value| Self::new(value, self.at(key))).transpose()
    }

    /// The objects of a list, each with its place.
    pub(crate) fn objects(&self, key: &'static str) -> Result<Vec<Self>, ImportError> {
        let list = self.list(key)?.iter().enumerate();
        list.map(|(index, value)| Self::new(value, format!("{}[{index}]", self.at(key)))).collect()
    }

    /// The keys that nobody asked for.
    pub(crate) fn rest(&self) -> Vec<&'v str> {
        let asked = self.asked.borrow();
        self.map.keys().map(String::as_str).filter(|key| !asked.contains(key)).collect()
    }

    /// Refuses keys that nobody asked for: what a node does must not be guessed.
    pub(crate) fn done(&self) -> Result<(), ImportError> {
        match self.rest().first() {
            None => Ok(()),
            Some(key) => Err(ImportError::new(&self.at, format!("unknown key {}", shown(key)))),
        }
    }
}

/// Returns the kind of a value, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
