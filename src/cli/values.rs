//! Values from the command line: `-i JSON|@file|-` and `key=value`.

use std::io::Read;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::exit::Stop;
use crate::blueprint::did_you_mean;

/// The longest document that is read, in bytes.
const LARGEST: u64 = 64 << 20;

/// One `key=value` of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The text before the first `=`.
    pub key: String,
    /// The text after it.
    pub value: String,
}

impl std::str::FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Self { key: key.to_owned(), value: value.to_owned() })
            }
            Some(_) | None => Err(format!("{text:?} is not key=value")),
        }
    }
}

/// Reads a JSON argument: the text itself, `@file`, or `-` for stdin.
///
/// # Errors
/// Text that is not JSON, a file that cannot be read.
pub fn document(argument: &str) -> Result<Value> {
    let (text, origin) = match argument.strip_prefix('@') {
        Some(file) => {
            let opened = std::fs::File::open(file)
                .map_err(|error| Stop::usage(format!("cannot read {file}: {error}")))?;
            (text(opened).with_context(|| format!("read {file}"))?, file)
        }
        None if argument == "-" => (text(std::io::stdin()).context("read stdin")?, "stdin"),
        None => (argument.to_owned(), "the argument"),
    };
    serde_json::from_str(&text).map_err(|error| {
        Stop::usage(format!("{origin} is not JSON: {error}"))
            .next("quote it for the shell: -i '{\"name\":\"world\"}'")
            .into()
    })
}

/// Reads text to its end; a shell may give a pipe as well as a file, and either may have none.
fn text(from: impl Read) -> Result<String> {
    let mut text = String::new();
    from.take(LARGEST + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LARGEST {
        true => Err(Stop::usage(format!("it has more than {} MiB", LARGEST >> 20)).into()),
        false => Ok(text),
    }
}

/// Puts the pairs over the document. A value is JSON if it parses, else a string; where the schema
/// asks for a string it is one.
///
/// # Errors
/// Pairs over a document that is not an object, or that the schema does not have.
pub fn input(base: Option<Value>, pairs: &[Pair], schema: Option<&Value>) -> Result<Value, Stop> {
    if pairs.is_empty() {
        return Ok(base.unwrap_or(Value::Null));
    }
    let mut object = match base {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(Stop::usage("key=value needs an input that is an object")),
    };
    for pair in pairs {
        if let Some(schema) = schema {
            known(schema, &pair.key)?;
        }
        let wanted = schema.and_then(|schema| schema.get("properties")?.get(&pair.key));
        object.insert(pair.key.clone(), coerce(&pair.value, wanted));
    }
    Ok(Value::Object(object))
}

/// Refuses a key that a schema does not have, as the daemon would, and says which it has.
fn known(schema: &Value, key: &str) -> Result<(), Stop> {
    // With these, what else may be there is for the daemon to say.
    let open = ["patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"];
    let closed = schema.get("additionalProperties").is_none_or(|more| more == false)
        && !open.iter().any(|keyword| schema.get(keyword).is_some());
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    if !closed || properties.contains_key(key) {
        return Ok(());
    }
    let stop = Stop::usage(format!("the input has no {key}"));
    let names = properties.keys().map(String::as_str);
    Err(match did_you_mean(key, names.clone()) {
        Some(likely) => stop.next(format!("did you mean {likely}=… ?")),
        None => stop.next(format!("it has: {}", names.collect::<Vec<_>>().join(", "))),
    })
}

fn coerce(text: &str, schema: Option<&Value>) -> Value {
    let string = || Value::String(text.to_owned());
    match serde_json::from_str::<Value>(text) {
        Ok(value) if schema.is_none_or(|schema| allows(schema, &value)) => value,
        Ok(_) | Err(_) => string(),
    }
}

/// Returns true if `type` or `enum` of a schema speak for the value as it is, rather than for a
/// string.
fn allows(schema: &Value, value: &Value) -> bool {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.contains(value);
    }
    match schema.get("type") {
        Some(Value::String(name)) => name != "string" || value.is_string(),
        Some(Value::Array(names)) => names.iter().any(|name| name != "string") || value.is_string(),
        Some(_) | None => true,
    }
}

/// Reads a duration: `90s`, `20m`, `1h 30m`.
///
/// # Errors
/// Says what a duration looks like.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let parsed: Option<jiff::SignedDuration> = text.parse().ok();
    parsed
        .and_then(|duration| std::time::Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is not a duration: expected `90s` or `20m`"))
}

/// Reads a size in bytes.
///
/// # Errors
/// Says what a size looks like.
pub fn size(text: &str) -> Result<u64, String> {
    crate::config::parse_size(text)
        .ok_or_else(|| format!("{text:?} is not a size: expected `2GiB` or `512MiB`"))
}

/// Adds the span that this process works in to a request, if its environment names one.
pub fn traced(request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
    let trace = std::env::var("TRACEPARENT").ok();
    match trace.and_then(|trace| crate::protocol::TraceParent::parse(&trace)) {
        Some(trace) => request.header("traceparent", trace.to_string()),
        None => request,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pairs(texts: &[&str]) -> Vec<Pair> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_value_is_json_if_it_parses_and_a_string_otherwise() {
        let given = pairs(&["n=3", "ok=true", "path=.", "list=[1]", "s=\"3\"", "empty=", "e=a=b"]);
        assert_eq!(
            input(None, &given, None).unwrap(),
            json!({"n": 3, "ok": true, "path": ".", "list": [1], "s": "3", "empty": "", "e": "a=b"})
        );
    }

    #[test]
    fn the_schema_decides_where_it_asks_for_a_string() {
        let schema = json!({"properties": {
            "issue": {"type": "string"},
            "n": {"type": "integer"},
            "mode": {"enum": ["1", "2"]},
            "maybe": {"type": ["string", "null"]},
        }});
        let given = pairs(&["issue=17", "n=17", "mode=1", "maybe=null"]);
        assert_eq!(
            input(None, &given, Some(&schema)).unwrap(),
            json!({"issue": "17", "n": 17, "mode": "1", "maybe": null})
        );
    }

    #[test]
    fn a_key_that_the_schema_does_not_have_is_refused_with_the_one_that_was_meant() {
        let mut schema = json!({"type": "object", "properties": {"who": {"type": "string"}}});
        let ask = |schema: &Value, pair: &str| input(None, &pairs(&[pair]), Some(schema));
        let next = |key: &str| ask(&schema, key).unwrap_err().next.unwrap();
        assert_eq!(next("woh=x"), "did you mean who=… ?");
        assert_eq!(next("something=x"), "it has: who");
        schema["additionalProperties"] = json!({"type": "string"});
        assert_eq!(ask(&schema, "woh=1").unwrap(), json!({"woh": 1}));
        assert!(ask(&json!({"type": "object"}), "woh=1").is_ok());
    }

    #[test]
    fn pairs_go_over_the_document() {
        let base = Some(json!({"a": 1, "b": 1}));
        assert_eq!(input(base, &pairs(&["b=2"]), None).unwrap(), json!({"a": 1, "b": 2}));
        assert!(input(Some(json!([1])), &pairs(&["b=2"]), None).is_err());
        assert_eq!(input(None, &[], None).unwrap(), Value::Null);
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        assert!("path".parse::<Pair>().is_err());
        assert!("=x".parse::<Pair>().is_err());
    }

    #[test]
    fn a_document_comes_from_a_file_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.json");
        std::fs::write(&file, "{\"a\":1}").unwrap();
        assert_eq!(document(&format!("@{}", file.display())).unwrap(), json!({"a": 1}));
        let missing = document("@/nonexistent/in.json").unwrap_err();
        assert_eq!(crate::cli::exit::judge(&missing).0, crate::cli::exit::Exit::Usage);
        assert!(document("{").unwrap_err().to_string().contains("not JSON"));
    }

    #[test]
    fn durations_read_as_in_blueprints() {
        assert_eq!(duration("90s").unwrap().as_secs(), 90);
        assert_eq!(duration("1h30m").unwrap().as_secs(), 5400);
        assert!(duration("soon").is_err());
        assert!(duration("-1s").is_err());
    }
}
