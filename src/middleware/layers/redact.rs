//! The layer that redacts content by pattern and by key.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use regex::{Regex, RegexSet};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    middleware::{
        About, Dispatch, DispatchLayer, Dispatched, Next, Settled, StoreCall, StoreLayer,
        StoreNext, Stored, stack::settle_now,
    },
    protocol::{Effect, Failure, Json},
};

mod written;

/// The settings of `kind = "redact"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedactSettings {
    /// Regular expressions; every match is replaced.
    #[serde(default)]
    pub patterns: Vec<Pattern>,
    /// Keys whose values are replaced, at any depth, in any case.
    #[serde(default)]
    pub keys: Vec<String>,
    /// The replacement.
    #[serde(default = "blot")]
    pub with: String,
    /// True if the input of agents is redacted.
    #[serde(default)]
    pub input: bool,
    /// True if results and failures are redacted.
    #[serde(default = "yes")]
    pub output: bool,
    /// True if values written to state are redacted.
    #[serde(default)]
    pub state: bool,
}

fn blot() -> String {
    "[redacted]".to_owned()
}

fn yes() -> bool {
    true
}

/// A regular expression with a bounded compiled size.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// The maximum compiled size of a pattern, in bytes.
const PATTERN_BYTES: usize = 1 << 20;

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let built = regex::RegexBuilder::new(&text).size_limit(PATTERN_BYTES).build();
        built.map(Self).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl RedactSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        let idle = self.patterns.is_empty() && self.keys.is_empty();
        idle.then(|| "it needs `patterns` or `keys`".to_owned())
    }
}

/// Replaces what its settings match.
#[derive(Clone)]
pub struct Redact {
    name: Arc<str>,
    settings: Arc<RedactSettings>,
    any: RegexSet,
}

impl fmt::Debug for Redact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redact").field(&self.name).finish()
    }
}

impl Redact {
    /// Creates a layer from `settings`.
    pub fn new(name: &str, settings: RedactSettings) -> Self {
        let patterns = settings.patterns.iter().map(|pattern| pattern.0.as_str());
        // Each pattern is within its bound, but together they may be too large for one set.
        let any = RegexSet::new(patterns).unwrap_or_else(|_| RegexSet::empty());
        Self { name: name.into(), settings: Arc::new(settings), any }
    }

    /// Returns a text without what its patterns match, if they match.
    pub fn text(&self, text: &str) -> Option<String> {
        let patterns = &self.settings.patterns;
        if patterns.is_empty() || (self.any.len() == patterns.len() && !self.any.is_match(text)) {
            return None;
        }
        let with = regex::NoExpand(&self.settings.with);
        let replaced = patterns.iter().fold(text.to_owned(), |text, pattern| {
            pattern.0.replace_all(&text, with.clone()).into_owned()
        });
        (replaced != text).then_some(replaced)
    }

    /// Returns the text that replaces the values of a key, if it is one of the layer's.
    pub fn instead_of(&self, key: &str) -> Option<&str> {
        self.is_key(key).then_some(&*self.settings.with)
    }

    fn is_key(&self, name: &str) -> bool {
        self.settings.keys.iter().any(|it| it.eq_ignore_ascii_case(name))
    }

    fn value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.text(text).map(|clean| *text = clean).is_some(),
            Value::Array(items) => items.iter_mut().fold(false, |any, it| self.value(it) | any),
            Value::Object(map) => {
                let mut any = false;
                for (key, value) in map.iter_mut() {
                    if self.is_key(key) && !value.is_null() {
                        *value = Value::String(self.settings.with.clone());
                        any = true;
                    } else {
                        any |= self.value(value);
                    }
                }
                any
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Replaces what its patterns and keys match in a named value.
    pub fn named(&self, name: &str, value: &mut Value) {
        if self.is_key(name) && !value.is_null() {
            *value = Value::String(self.settings.with.clone());
        } else {
            self.value(value);
        }
    }

    /// Replaces what its patterns and keys match in a document, which is otherwise kept as it was
    /// written.
    fn json(&self, json: Json) -> Json {
        let named = |key: &str| self.instead_of(key).map(str::to_owned);
        let clean = written::replaced(json.as_str(), &named, &|text| self.text(text));
        clean.map_or(json, Json::from_trusted)
    }

    /// Replaces what its patterns and keys match in the lines that a result adds to the log.
    fn lines(&self, effects: &mut [Effect]) {
        for effect in effects {
            if let Effect::Log { message, data, .. } = effect {
                if let Some(clean) = self.text(message) {
                    *message = clean;
                }
                if let Some(data) = data {
                    self.value(data);
                }
            }
        }
    }

    fn failure(&self, mut failure: Failure) -> Failure {
        if let Some(clean) = self.text(&failure.message) {
            failure.message = clean;
        }
        failure.data = failure.data.map(|data| self.json(data));
        failure
    }
}

#[async_trait]
impl DispatchLayer for Redact {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let outcome = next.run(dispatch).await;
        settle_now(self, &about, &input, outcome)
    }

    fn prepare(&self, _agent: &str, _operator: &str, input: Json) -> Json {
        if self.settings.input { self.json(input) } else { input }
    }

    fn settle(&self, _about: &About, _input: &Json, outcome: Settled) -> Settled {
        if !self.settings.output {
            return outcome;
        }
        match outcome {
            Ok(mut done) => {
                done.output = self.json(done.output);
                self.lines(&mut done.effects);
                Ok(done)
            }
            Err(mut short) => {
                short.failure = self.failure(short.failure);
                self.lines(&mut short.effects);
                Err(short)
            }
        }
    }
}

impl StoreLayer for Redact {
    fn name(&self) -> &str {
        &self.name
    }

    fn store(&self, mut call: StoreCall, next: StoreNext<'_>) -> Stored {
        call.value = call.value.map(|value| self.json(value));
        next.run(call)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::{
        middleware::{DispatchStack, TaskDone, fixture},
        protocol::LogLevel,
    };

    fn redact(settings: Value) -> Redact {
        Redact::new("redact", serde_json::from_value(settings).unwrap())
    }

    fn output(layer: Redact, input: &str) -> String {
        let stack = DispatchStack::builder().transform(layer).build();
        let outcome = stack.run(fixture::dispatch(input), &fixture::Echo).now_or_never();
        let Some(Ok(Dispatched::Done(done))) = outcome else { panic!("{outcome:?}") };
        done.output.as_str().to_owned()
    }

    #[test]
    fn matches_and_named_values_are_replaced_at_any_depth() {
        let layer = redact(json!({"patterns": ["sk-[a-z0-9]+"], "keys": ["password"]}));
        let input = r#"{"a":["use sk-12ab now"],"b":{"Password":{"x":1},"n":5},"password":null}"#;
        let expected =
            r#"{"a":["use [redacted] now"],"b":{"Password":"[redacted]","n":5},"password":null}"#;
        assert_eq!(output(layer, input), expected);
    }

    #[test]
    fn what_has_nothing_to_hide_stays_as_it_was_written() {
        let layer = redact(json!({"patterns": ["violet"]}));
        assert_eq!(output(layer, r#"{"b": 1.50,  "a": "red"}"#), r#"{"b": 1.50,  "a": "red"}"#);
    }

    #[test]
    fn failures_are_redacted_too() {
        let layer = redact(json!({"patterns": ["violet"]}));
        let about = fixture::dispatch("1").about;
        let failure = Failure::new("worker", "saw violet").with_data(json!({"x": "violet"}).into());
        let short = layer.settle(&about, &Json::null(), Err(Box::new(failure.into()))).unwrap_err();
        assert_eq!(short.failure.message, "saw [redacted]");
        assert_eq!(short.failure.data.unwrap().as_str(), r#"{"x":"[redacted]"}"#);
    }

    #[test]
    fn inputs_are_left_alone_unless_asked() {
        let input = || Json::parse("\"violet\"").unwrap();
        let quiet = redact(json!({"patterns": ["violet"]}));
        assert_eq!(quiet.prepare("a", "o", input()), input());
        let loud = redact(json!({"patterns": ["violet"], "input": true, "with": "$0"}));
        assert_eq!(loud.prepare("a", "o", input()).as_str(), "\"$0\"");
    }

    #[test]
    fn documents_that_have_no_tree_of_values_are_redacted_all_the_same() {
        let layer = redact(json!({"patterns": ["sk-[a-z0-9]+"], "keys": ["password"]}));
        let deep = |value: &str| format!("{}{value}{}", "[".repeat(200), "]".repeat(200));
        let (shown, hidden) = (deep(r#"{"password":[1]}"#), deep(r#"{"password":"[redacted]"}"#));
        for (input, expected) in [
            (r#"{"n":1e999,"password":"a"}"#, r#"{"n":1e999,"password":"[redacted]"}"#),
            (r#"[1e999, "sk-1"]"#, r#"[1e999, "[redacted]"]"#),
            (r#"{"password":"a","password":null}"#, r#"{"password":"[redacted]","password":null}"#),
            (r#"{"a":"sk-1","a":"b"}"#, r#"{"a":"[redacted]","a":"b"}"#),
            (&*shown, &*hidden),
        ] {
            assert_eq!(output(layer.clone(), input), expected);
        }
    }

    #[test]
    fn lines_that_a_result_adds_to_the_log_are_redacted_too() {
        let layer = redact(json!({"patterns": ["violet"], "keys": ["password"]}));
        let line = |text: &str, data: Value| Effect::Log {
            level: LogLevel::Info,
            message: text.to_owned(),
            data: Some(data),
        };
        let said = || vec![line("saw violet", json!({"password": 1, "x": "violet"}))];
        let data = json!({"password": "[redacted]", "x": "[redacted]"});
        let clean = vec![line("saw [redacted]", data)];
        let about = fixture::dispatch("1").about;
        let done = TaskDone { effects: said(), ..TaskDone::new(Json::null()) };
        assert_eq!(layer.settle(&about, &Json::null(), Ok(done)).unwrap().effects, clean);
        let mut short: crate::middleware::Short = Failure::new("worker", "failed").into();
        short.effects = said();
        let short = layer.settle(&about, &Json::null(), Err(Box::new(short))).unwrap_err();
        assert_eq!(short.effects, clean);
    }
}
