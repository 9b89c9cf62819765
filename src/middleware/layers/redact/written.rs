//! Replacing texts and values within JSON as it is written.
//!
//! No tree of values is made: it would lose all but the last value of a key that comes twice, and
//! not every document has one. A number may be too large for it, and lists may be nested too deep.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use serde_json::Value;

/// Returns the replacement of a text, or of the value of a key; `None` if it stays.
pub(super) type Instead<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns a document with the values of some keys replaced by texts, unless they are null, and
/// with some texts replaced by others. `None` if all of it stays.
pub(super) fn replaced(json: &str, named: Instead<'_>, text: Instead<'_>) -> Option<String> {
    let bytes = json.as_bytes();
    let mut clean = String::new();
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = json[at..].find('"') {
        let start = at + found;
        let end = string_end(bytes, start);
        let said = decoded(&json[start..end]);
        let colon = after_blanks(bytes, end);
        let (from, to, with) = if bytes.get(colon) == Some(&b':') {
            let value = after_blanks(bytes, colon + 1);
            at = value;
            let Some(with) = named(&said) else { continue };
            (value, value_end(bytes, value), with)
        } else {
            at = end;
            let Some(with) = text(&said) else { continue };
            (start, end, with)
        };
        at = to;
        if &json[from..to] == "null" {
            continue;
        }
        clean.push_str(&json[kept..from]);
        clean.push_str(&Value::from(with).to_string());
        kept = to;
    }
    (kept > 0).then(|| {
        clean.push_str(&json[kept..]);
        clean
    })
}

/// Returns the place behind the string whose first quote is at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the place behind a value.
fn value_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut open) = (start, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at);
                if open == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' if open > 0 => {
                open -= 1;
                if open == 0 {
                    return at + 1;
                }
            }
            b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' if open == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn after_blanks(bytes: &[u8], at: usize) -> usize {
    let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    at + bytes[at..].iter().take_while(is_blank).count()
}

/// Returns what a string of JSON says. Half of a pair of surrogates, which JSON may have, becomes
/// the sign for what is no character.
fn decoded(literal: &str) -> String {
    match serde_json::from_str::<Said>(literal) {
        Ok(Said(said)) => said,
        Err(_) => literal.trim_matches('"').to_owned(),
    }
}

struct Said(String);

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Said;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Said, E> {
                Ok(Said(String::from_utf8_lossy(bytes).into_owned()))
            }
        }

        from.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(json: &str) -> Option<String> {
        let named = |key: &str| (key == "key").then(|| "\"".to_owned());
        replaced(json, &named, &|text| text.contains("red").then(|| text.replace("red", "blue")))
    }

    #[test]
    fn texts_and_values_are_replaced_where_they_stand() {
        for (json, expected) in [
            (r#"{"key" : {"a": ["]", 1]} , "n": 1.50}"#, r#"{"key" : "\"" , "n": 1.50}"#),
            (r#"{"key":-1e5,"red":["red"]}"#, r#"{"key":"\"","red":["blue"]}"#),
            (r#"["\"red\\", "red"]"#, r#"["\"blue\\", "blue"]"#),
            (r#"{"k\u0065y":true}"#, r#"{"k\u0065y":"\""}"#),
            (r#"["r\u0065d é", "key"]"#, r#"["blue é", "key"]"#),
            (r#"{"a":{"key":[[]]},"b":[{"key":0}]}"#, r#"{"a":{"key":"\""},"b":[{"key":"\""}]}"#),
        ] {
            assert_eq!(clean(json).as_deref(), Some(expected), "{json}");
            serde_json::from_str::<serde::de::IgnoredAny>(expected).unwrap();
        }
    }

    #[test]
    fn half_of_a_pair_of_surrogates_hides_nothing() {
        let shown = clean(r#"["\ud800red"]"#).unwrap();
        assert!(shown.ends_with("blue\"]"), "{shown}");
    }

    #[test]
    fn all_else_stays() {
        for json in ["", "1", "null", r#"{"key" : null}"#, r#"{"red": 1, "a": "key"}"#, "\""] {
            assert_eq!(clean(json), None, "{json}");
        }
    }
}
