//! Typed access to the fields of a JSON object, with errors that name the parameter.

use serde_json::{Map, Value};

use crate::respond::Refused;

/// An object and its position in the request.
pub(crate) struct Fields<'a> {
    pub(crate) map: &'a Map<String, Value>,
    at: &'a str,
}

impl<'a> Fields<'a> {
    /// Creates the fields of an object. The position of the request itself is empty.
    pub(crate) fn at(map: &'a Map<String, Value>, at: &'a str) -> Self {
        Self { map, at }
    }

    /// Returns the fields of a body.
    pub(crate) fn of_body(body: &'a Value) -> Result<Self, Refused> {
        let wrong = || Refused { param: None, ..Refused::invalid("", "the body is not an object") };
        Ok(Self::at(body.as_object().ok_or_else(wrong)?, ""))
    }

    /// Returns the fields of an object within a body. In the error, `what` is the object: `a tool`.
    pub(crate) fn of(value: &'a Value, at: &'a str, what: &str) -> Result<Self, Refused> {
        let wrong = || Refused::invalid(at, format!("{what} is an object"));
        Ok(Self::at(value.as_object().ok_or_else(wrong)?, at))
    }

    /// Returns the full name of a parameter, for errors.
    pub(crate) fn param(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Returns the error for an invalid parameter.
    pub(crate) fn wrong(&self, name: &str, what: &str) -> Refused {
        Refused::invalid(self.param(name), format!("{} {what}", self.param(name)))
    }

    /// Returns a parameter; `None` if it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Returns those of the named parameters that are there.
    pub(crate) fn only(&self, names: &[&str]) -> Map<String, Value> {
        let given = |name: &&str| Some(((*name).to_owned(), self.get(name)?.clone()));
        names.iter().filter_map(given).collect()
    }

    /// Refuses the named parameters, which are not offered here. An empty list asks for nothing.
    pub(crate) fn without(&self, names: &[&str]) -> Result<(), Refused> {
        for &name in names {
            if self.get(name).is_some_and(|it| it.as_array().is_none_or(|it| !it.is_empty())) {
                return Err(Refused::unsupported(name, format!("{name} is not offered here")));
            }
        }
        Ok(())
    }

    /// Returns an optional text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, Refused> {
        let read =
            |value: &'a Value| value.as_str().ok_or_else(|| self.wrong(name, "must be a text"));
        self.get(name).map(read).transpose()
    }

    /// Returns a required text.
    pub(crate) fn needed(&self, name: &str) -> Result<&'a str, Refused> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// Returns an optional boolean.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Refused> {
        let read = |value: &Value| {
            value.as_bool().ok_or_else(|| self.wrong(name, "must be true or false"))
        };
        self.get(name).map(read).transpose()
    }

    /// Returns an optional whole number within bounds.
    pub(crate) fn whole(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refused> {
        let read = |value: &Value| {
            value.as_u64().filter(|n| (least..=most).contains(n)).ok_or_else(|| {
                self.wrong(name, &format!("must be a whole number from {least} to {most}"))
            })
        };
        self.get(name).map(read).transpose()
    }

    /// Checks an optional number within bounds.
    pub(crate) fn number(&self, name: &str, least: f64, most: f64) -> Result<(), Refused> {
        match self.get(name) {
            None => Ok(()),
            Some(value) => match value.as_f64() {
                Some(n) if (least..=most).contains(&n) => Ok(()),
                _ => Err(self.wrong(name, &format!("must be a number from {least} to {most}"))),
            },
        }
    }

    /// Checks an optional word against the allowed ones.
    pub(crate) fn word(&self, name: &str, words: &[&str]) -> Result<(), Refused> {
        match self.text(name)? {
            Some(word) if !words.contains(&word) => {
                Err(self.wrong(name, &format!("is none of {}", words.join(", "))))
            }
            _ => Ok(()),
        }
    }
}
