//! Values from the command line: `-i JSON|@file|-` and `key=value`.

use std::io::Read;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::exit::Stop;
use crate::blueprint::{Schema, did_you_mean, old_form, parse_duration};

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
/// takes only the string it is one.
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
    let of_keys = schema.and_then(of_keys);
    for pair in pairs {
        if let Some(schema) = schema {
            known(schema, &pair.key)?;
        }
        let is_text = schema.is_some_and(|it| it["properties"][&pair.key]["type"] == "string");
        object.insert(pair.key.clone(), coerce(pair, of_keys.as_ref(), is_text));
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

/// Returns what a schema asks of each key by itself.
fn of_keys(schema: &Value) -> Option<Schema> {
    const PARTS: [&str; 6] = [
        "$schema",
        "$defs",
        "definitions",
        "properties",
        "patternProperties",
        "additionalProperties",
    ];
    let mut schema = schema.clone();
    schema.as_object_mut()?.retain(|keyword, _| PARTS.contains(&keyword.as_str()));
    Schema::compile_value(schema, true).ok()
}

/// Returns the string if the schema takes it and not the value that it is as JSON. If it takes
/// neither, the refusal is about the string where `is_text`.
fn coerce(pair: &Pair, schema: Option<&Schema>, is_text: bool) -> Value {
    let string = Value::String(pair.value.clone());
    let Ok(value) = serde_json::from_str::<Value>(&pair.value) else { return string };
    let takes = |value: &Value| {
        let object = Value::Object(Map::from_iter([(pair.key.clone(), value.clone())]));
        schema.is_some_and(|schema| schema.validate(&object).is_ok())
    };
    match !takes(&value) && (takes(&string) || (is_text && !value.is_string())) {
        true => string,
        false => value,
    }
}

/// Reads a duration as in blueprints, `90s`, `20m`, `2d`, or looser: `1h 30m`, `90 seconds`.
///
/// # Errors
/// Says what a duration looks like.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    // A number without a unit is only read where old blueprints may have one.
    if let (Ok(ms), None) = (parse_duration(text), old_form(text)) {
        return Ok(std::time::Duration::from_millis(ms));
    }
    let parsed: Option<jiff::SignedDuration> = text.parse().ok();
    parsed
        .and_then(|duration| std::time::Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is not a duration: expected `90s` or `20m`"))
}

/// Reads a number of shards.
///
/// # Errors
/// Says how many there may be.
pub fn shards(text: &str) -> Result<usize, String> {
    let shards = text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"))?;
    crate::config::check_shards(shards)
}

/// Reads the lease of pull workers.
///
/// # Errors
/// Says what a duration looks like, and which ones are no lease.
pub fn lease(text: &str) -> Result<std::time::Duration, String> {
    crate::config::check_lease(duration(text)?)
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
            "other": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        }});
        let given = ["issue=17", "n=17", "mode=1", "maybe=null", "other=17", "either=17", "any=17"];
        assert_eq!(
            input(None, &pairs(&given), Some(&schema)).unwrap(),
            json!({"issue": "17", "n": 17, "mode": "1", "maybe": null, "other": "17", "either": "17",
                "any": 17})
        );
    }

    #[test]
    fn a_key_has_the_schema_that_the_whole_document_gives_it() {
        let schema = json!({"type": "object", "required": ["name"],
            "$defs": {"id": {"type": "string"}},
            "properties": {
                "ref": {"$ref": "#/$defs/id"},
                "refs": {"type": "array", "items": {"$ref": "#/$defs/id"}},
                "one": {"const": "1"},
                "long": {"type": "string", "minLength": 3},
                "on": {"type": "boolean"},
            },
            "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}},
            "additionalProperties": {"type": "string"}});
        let given =
            ["ref=1", "refs=[\"1\"]", "one=1", "long=17", "on=true", "n_a=1", "s_a=1", "rest=1"];
        assert_eq!(
            input(None, &pairs(&given), Some(&schema)).unwrap(),
            json!({"ref": "1", "refs": ["1"], "one": "1", "long": "17", "on": true, "n_a": 1,
                "s_a": "1", "rest": "1"})
        );
        let broken = json!({"properties": {"n": {"$ref": "#/nowhere"}, "s": {"type": "string"}}});
        let value = input(None, &pairs(&["n=1", "s=1"]), Some(&broken)).unwrap();
        assert_eq!(value, json!({"n": 1, "s": "1"}));
    }

    #[test]
    fn a_key_that_the_schema_does_not_have_is_refused_with_the_one_that_was_meant() {
        let mut schema = json!({"type": "object", "properties": {"who": {"type": "string"}}});
        let ask = |schema: &Value, pair: &str| input(None, &pairs(&[pair]), Some(schema));
        let next = |key: &str| ask(&schema, key).unwrap_err().next.unwrap();
        assert_eq!(next("woh=x"), "did you mean who=… ?");
        assert_eq!(next("something=x"), "it has: who");
        schema["additionalProperties"] = json!({"type": "string"});
        assert_eq!(ask(&schema, "woh=1").unwrap(), json!({"woh": "1"}));
        schema["patternProperties"] = json!({"^n": {"type": "integer"}});
        assert_eq!(ask(&schema, "n1=1").unwrap(), json!({"n1": 1}));
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
        assert_eq!(duration("2d").unwrap().as_secs(), 172_800);
        assert_eq!(duration("1h 30m").unwrap().as_secs(), 5400);
        assert_eq!(duration("90 seconds").unwrap().as_secs(), 90);
        assert!(duration("90").is_err());
        assert!(duration("soon").is_err());
        assert!(duration("-1s").is_err());
    }

    #[test]
    fn shards_are_as_many_as_can_be_started() {
        assert_eq!((shards("0"), shards("256")), (Ok(0), Ok(256)));
        assert!(shards("257").unwrap_err().contains("at most 256"));
        assert!(shards("many").unwrap_err().contains("not a number"));
    }

    #[test]
    fn a_lease_has_time_and_ends() {
        assert_eq!(lease("90s").unwrap().as_secs(), 90);
        assert!(lease("0s").unwrap_err().contains("no time at all"));
        // As a point in time, it would be beyond every clock.
        assert!(lease("999999999h").unwrap_err().contains("100 years"));
    }
}
