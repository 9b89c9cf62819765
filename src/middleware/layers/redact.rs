//! The layer that redacts content by pattern and by key.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use regex::{Regex, RegexSet};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    middleware::{
        ANSWER, About, Dispatch, DispatchLayer, Dispatched, Next, Settled, StoreCall, StoreLayer,
        StoreNext, StoreOp, Stored, message_of, stack::settle_now, value_of,
    },
    protocol::{Content, Effect, Failure, Json},
};

mod written;

/// The settings of `kind = "redact"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedactSettings {
    /// Regular expressions; every match is replaced.
    #[serde(default, deserialize_with = "patterns")]
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

/// The maximum number of patterns of a layer.
const PATTERNS: usize = 1_000;

/// The maximum compiled size of all patterns of a layer, in bytes.
const ALL_BYTES: usize = 32 << 20;

/// The maximum length of the replacement, in bytes.
const WITH_BYTES: usize = 256;

/// Reads the patterns of a layer. None is kept compiled before all are known to be within bounds.
fn patterns<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pattern>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    if texts.len() > PATTERNS {
        return Err(D::Error::custom(format!("`patterns` has more than {PATTERNS} patterns")));
    }
    let all = regex::RegexSetBuilder::new(&texts).size_limit(ALL_BYTES).build();
    if let Err(regex::Error::CompiledTooBig(_)) = all {
        let most = format!("`patterns` have more than {ALL_BYTES} bytes together when compiled");
        return Err(D::Error::custom(most));
    }
    let build = |text: &String| {
        let built = regex::RegexBuilder::new(text).size_limit(PATTERN_BYTES).build();
        built.map(Pattern).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    };
    texts.iter().map(build).collect()
}

/// Returns the form of a key in which it is compared: without the case of its letters, of any
/// alphabet.
fn folded(key: &str) -> String {
    // In this order `ß` is `SS`, and the two small forms of sigma are one.
    key.to_uppercase().to_lowercase()
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl RedactSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        if self.with.len() > WITH_BYTES {
            return Some(format!("`with` has more than {WITH_BYTES} bytes"));
        }
        let idle = self.patterns.is_empty() && self.keys.is_empty();
        idle.then(|| "it needs `patterns` or `keys`".to_owned())
    }
}

/// Returns a text with `with` in place of every match; `None` if it has more than `most` bytes.
fn replaced(pattern: &Regex, text: &str, with: &str, most: usize) -> Option<String> {
    let (mut clean, mut end) = (String::new(), 0);
    for found in pattern.find_iter(text) {
        clean.push_str(&text[end..found.start()]);
        clean.push_str(with);
        end = found.end();
        if clean.len() > most {
            return None;
        }
    }
    clean.push_str(&text[end..]);
    (clean.len() <= most).then_some(clean)
}

/// Replaces what its settings match.
#[derive(Clone)]
pub struct Redact {
    name: Arc<str>,
    settings: Arc<RedactSettings>,
    /// The keys, folded.
    keys: Arc<[String]>,
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
        let keys = settings.keys.iter().map(|key| folded(key)).collect();
        Self { name: name.into(), settings: Arc::new(settings), keys, any }
    }

    /// Creates a layer that replaces all text.
    pub(in crate::middleware) fn of_all_text(name: &str) -> Self {
        let all = Pattern(Regex::new("(?s).+").expect("the pattern is valid"));
        let (patterns, keys, with) = (vec![all], Vec::new(), blot());
        let settings =
            RedactSettings { patterns, keys, with, input: true, output: true, state: true };
        Self::new(name, settings)
    }

    /// Returns a text without what its patterns match, if they match. One that would become several
    /// times as long is replaced as a whole.
    pub fn text(&self, text: &str) -> Option<String> {
        let patterns = &self.settings.patterns;
        if patterns.is_empty() || (self.any.len() == patterns.len() && !self.any.is_match(text)) {
            return None;
        }
        let with = &self.settings.with;
        let most = 4 * (text.len() + with.len());
        let replace = |text: String, pattern: &Pattern| replaced(&pattern.0, &text, with, most);
        let clean = patterns.iter().try_fold(text.to_owned(), replace);
        let clean = clean.unwrap_or_else(|| with.clone());
        (clean != text).then_some(clean)
    }

    /// Returns the text that replaces the values of a key, if it is one of the layer's.
    pub fn instead_of(&self, key: &str) -> Option<&str> {
        self.is_key(key).then_some(&*self.settings.with)
    }

    fn is_key(&self, name: &str) -> bool {
        !self.keys.is_empty() && self.keys.contains(&folded(name))
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

    /// Returns a result as it may be stored.
    pub(in crate::middleware) fn output(&self, output: Json) -> Json {
        if self.settings.output { self.json(output) } else { output }
    }

    /// Replaces what its patterns and keys match in the lines that a result adds to the log, and in
    /// the answer that the history keeps with it.
    fn effects(&self, effects: &mut [Effect]) {
        for effect in effects {
            match effect {
                Effect::Log { message, data, .. } => {
                    if let Some(clean) = self.text(message) {
                        *message = clean;
                    }
                    if let Some(data) = data {
                        self.value(data);
                    }
                }
                Effect::Custom { effect_type, data } if effect_type.as_str() == ANSWER => {
                    self.answer(data);
                }
                _ => {}
            }
        }
    }

    /// Replaces what its patterns and keys match in the message of an answer; returns true if they do.
    fn answer(&self, data: &mut Value) -> bool {
        let message = data.get("message").cloned().unwrap_or_default();
        let Ok(message) = serde_json::from_value::<Content>(message) else { return false };
        let said = value_of(&message);
        let clean = self.json(said.clone());
        let is_other = clean != said;
        if is_other {
            data["message"] = serde_json::json!(message_of(&clean));
        }
        is_other
    }

    fn failure(&self, mut failure: Failure) -> Failure {
        if let Some(clean) = self.text(&failure.message) {
            failure.message = clean;
        }
        failure.data = failure.data.map(|data| {
            // An answer that fell short is in it as a whole.
            let mut told = data.to_value();
            let is_other = told.get("exit_reason").is_some() && self.answer(&mut told);
            self.json(if is_other { Json::from(told) } else { data })
        });
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
                self.effects(&mut done.effects);
                Ok(done)
            }
            Err(mut short) => {
                short.failure = self.failure(short.failure);
                self.effects(&mut short.effects);
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
        let op = call.op;
        let is_named = matches!(op, StoreOp::Write | StoreOp::Reduce) && self.is_key(&call.key);
        call.value = call.value.map(|value| {
            let text = value.as_str().trim();
            let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            // A sum takes nothing but numbers.
            let stays = text == "null" || (op == StoreOp::Reduce && is_number);
            match is_named && !stays {
                true => Json::from(Value::from(self.settings.with.as_str())),
                false => self.json(value),
            }
        });
        next.run(call)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::{
        middleware::{DispatchStack, StoreStack, TaskDone, answer_of, fixture, taken},
        protocol::{ExitReason, LogLevel, OperatorOutput},
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
    fn a_key_is_meant_in_any_case_of_any_alphabet() {
        let layer = redact(json!({"keys": ["Straße", "ключ", "ΚΩΔΙΚΟΣ"]}));
        for key in ["STRASSE", "КЛЮЧ", "κωδικος", "Κωδικοσ", "straße"] {
            let expected = format!(r#"{{"{key}":"[redacted]"}}"#);
            assert_eq!(output(layer.clone(), &format!(r#"{{"{key}":1}}"#)), expected);
        }
        assert_eq!(output(layer, r#"{"стена":1}"#), r#"{"стена":1}"#);
    }

    #[test]
    fn a_value_under_a_key_of_state_is_replaced_whatever_it_is() {
        let layer = redact(json!({"keys": ["password"], "state": true}));
        let stack = StoreStack::builder().transform(layer).build();
        for (op, key, value, expected) in [
            (StoreOp::Write, "Password", r#""a""#, r#""[redacted]""#),
            (StoreOp::Write, "password", "7", r#""[redacted]""#),
            (StoreOp::Write, "password", "null", "null"),
            (StoreOp::Reduce, "password", r#"{"a":1}"#, r#""[redacted]""#),
            (StoreOp::Reduce, "password", "7", "7"),
            (StoreOp::Link, "password", r#"{"to":"b"}"#, r#"{"to":"b"}"#),
            (StoreOp::Write, "name", r#""a""#, r#""a""#),
        ] {
            let (run, principal, scope) = (None, "root".into(), "global".to_owned());
            let (key, value) = (key.to_owned(), Some(Json::parse(value).unwrap()));
            let call = StoreCall { op, run, principal, scope, key, value };
            let written = stack.run(call, &mut |call| Ok(call.value.unwrap())).unwrap();
            assert_eq!(written.as_str(), expected);
        }
    }

    #[test]
    fn patterns_have_a_number_and_a_size_that_they_do_not_exceed() {
        let read = |patterns: Vec<&str>| {
            let settings = serde_json::from_value::<RedactSettings>(json!({"patterns": patterns}));
            settings.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(read(vec!["sk-[a-z0-9]{20}"; 200]), Ok(()));
        let error = read(vec!["a"; PATTERNS + 1]).unwrap_err();
        assert_eq!(error, "`patterns` has more than 1000 patterns");
        let error = read(vec![r"\w{15}"; 200]).unwrap_err();
        assert_eq!(error, "`patterns` have more than 33554432 bytes together when compiled");
        assert!(read(vec![r"\w{60}"]).unwrap_err().starts_with(r#""\\w{60}": "#));
    }

    #[test]
    fn replacements_make_no_text_many_times_as_long() {
        let layer = redact(json!({"patterns": [".", "."]}));
        assert_eq!(layer.text(&"x".repeat(1_000)).as_deref(), Some("[redacted]"));
        let layer = redact(json!({"patterns": ["x"]}));
        assert_eq!(layer.text("x, y, x").as_deref(), Some("[redacted], y, [redacted]"));
        let settings = json!({"keys": ["key"], "with": "x".repeat(WITH_BYTES + 1)});
        let settings: RedactSettings = serde_json::from_value(settings).unwrap();
        assert_eq!(settings.fault().as_deref(), Some("`with` has more than 256 bytes"));
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
    fn the_answer_that_is_kept_with_a_result_is_redacted_too() {
        let layer = redact(json!({"patterns": ["violet"], "keys": ["password"]}));
        let about = fixture::dispatch("1").about;
        for exit in [ExitReason::Complete, ExitReason::Error] {
            let said = Content::text(r#"{"password":"a","x":"violet"}"#);
            let outcome = taken(OperatorOutput::new(said, exit), true);
            let clean = Content::text(r#"{"password":"[redacted]","x":"[redacted]"}"#);
            let effects = match layer.settle(&about, &Json::null(), outcome) {
                Ok(done) => done.effects,
                Err(short) => {
                    let data = short.failure.data.as_ref().unwrap().to_value();
                    assert_eq!(data["message"], json!(clean));
                    short.effects
                }
            };
            assert_eq!(answer_of(None, None, effects).unwrap().message, clean);
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
