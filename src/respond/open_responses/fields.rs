//! The fields of a JSON object in a request, read with the place that a refusal names.

use serde_json::{Map, Value};

use crate::respond::Refused;

/// The parameters of an object, and where it stands in the request.
pub(crate) struct Fields<'a> {
    pub(crate) map: &'a Map<String, Value>,
    at: &'a str,
}

impl<'a> Fields<'a> {
    /// Those of an object at a place; the request itself stands at none.
    pub(crate) fn at(map: &'a Map<String, Value>, at: &'a str) -> Self {
        Self { map, at }
    }

    /// The name of a parameter, for a refusal.
    pub(crate) fn param(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// A refusal of a parameter.
    pub(crate) fn wrong(&self, name: &str, what: &str) -> Refused {
        Refused::invalid(self.param(name), format!("{} {what}", self.param(name)))
    }

    /// A parameter that is neither absent nor null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A text, if it is there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, Refused> {
        let read =
            |value: &'a Value| value.as_str().ok_or_else(|| self.wrong(name, "must be a text"));
        self.get(name).map(read).transpose()
    }

    /// A text that must be there.
    pub(crate) fn needed(&self, name: &str) -> Result<&'a str, Refused> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// A boolean, if it is there.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Refused> {
        let read = |value: &Value| {
            value.as_bool().ok_or_else(|| self.wrong(name, "must be true or false"))
        };
        self.get(name).map(read).transpose()
    }

    /// A whole number within bounds, if it is there.
    pub(crate) fn whole(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refused> {
        let read = |value: &Value| {
            value.as_u64().filter(|n| (least..=most).contains(n)).ok_or_else(|| {
                self.wrong(name, &format!("must be a whole number from {least} to {most}"))
            })
        };
        self.get(name).map(read).transpose()
    }

    /// A number within bounds, if it is there.
    pub(crate) fn number(&self, name: &str, least: f64, most: f64) -> Result<(), Refused> {
        match self.get(name) {
            None => Ok(()),
            Some(value) => match value.as_f64() {
                Some(n) if (least..=most).contains(&n) => Ok(()),
                _ => Err(self.wrong(name, &format!("must be a number from {least} to {most}"))),
            },
        }
    }

    /// One of some words, if it is there.
    pub(crate) fn word(&self, name: &str, words: &[&str]) -> Result<(), Refused> {
        match self.text(name)? {
            Some(word) if !words.contains(&word) => {
                Err(self.wrong(name, &format!("is none of {}", words.join(", "))))
            }
            _ => Ok(()),
        }
    }
}
