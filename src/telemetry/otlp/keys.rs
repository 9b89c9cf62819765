//! Values of redacted keys within texts: a prompt, the output of a program or the arguments of a call
//! may contain JSON, whole or in part, also as a string of another JSON document.
//!
//! A text is not parsed as a whole, so that JSON within prose, and JSON that was cut off, is treated
//! like any other. In doubt, more is replaced than the value.

use serde_json::Value;

/// The longest key that is looked for, in bytes.
const KEY: usize = 256;
/// The maximum number of times that a key is decoded.
const LEVELS: usize = 8;
/// A quote as some write it in JSON within JSON.
const QUOTE: &str = "\\u0022";

/// Returns the replacement for the value of a key; `None` if the key is not redacted.
pub(super) type Instead<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces values of redacted keys in all texts of a value.
pub(super) fn within(value: &mut Value, instead: Instead<'_>) {
    match value {
        Value::String(text) => {
            if let Some(clean) = without(text, instead) {
                *text = clean;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| within(it, instead)),
        Value::Object(map) => map.values_mut().for_each(|it| within(it, instead)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns a text without the values of redacted keys, if it has any.
fn without(text: &str, instead: Instead<'_>) -> Option<String> {
    let clean = without_quoted(text, instead);
    let shown = clean.as_deref().unwrap_or(text);
    if !shown.contains(QUOTE) {
        return clean;
    }
    without_quoted(&shown.replace(QUOTE, "\\\""), instead).or(clean)
}

/// Returns a text without the values of redacted keys, if it has any. Finds only quotes that are
/// written as such, with or without backslashes.
fn without_quoted(text: &str, instead: Instead<'_>) -> Option<String> {
    let bytes = text.as_bytes();
    let mut clean = String::new();
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = text[at..].find('"') {
        let quote = at + found;
        at = quote + 1;
        let Some(pair) = Pair::at(text, quote) else { continue };
        let Some(with) = instead(&decoded(pair.key)) else { continue };
        let end = value_end(bytes, pair.value, pair.slashes);
        at = end.max(at);
        if matches!(text[pair.value..end].trim(), "" | "null") {
            continue;
        }
        clean.push_str(&text[kept..pair.value]);
        clean.push_str(&literal(&with, pair.slashes));
        kept = end;
    }
    (kept > 0).then(|| {
        clean.push_str(&text[kept..]);
        clean
    })
}

/// A key in quotes, with a colon and a value after it.
struct Pair<'a> {
    key: &'a str,
    /// The number of backslashes before each of its quotes.
    slashes: usize,
    /// The place of the value.
    value: usize,
}

impl<'a> Pair<'a> {
    /// Returns the pair whose key begins with a quote.
    fn at(text: &'a str, quote: usize) -> Option<Self> {
        let (bytes, start) = (text.as_bytes(), quote + 1);
        let slashes = slashes_before(bytes, 0, quote);
        let most = bytes.len().min(start + KEY);
        let close = start + bytes[start..most].iter().position(|it| *it == b'"')?;
        if slashes_before(bytes, start, close) != slashes {
            return None;
        }
        let colon = after_blanks(bytes, close + 1);
        if bytes.get(colon) != Some(&b':') {
            return None;
        }
        let value = after_blanks(bytes, colon + 1);
        Some(Self { key: &text[start..close - slashes], slashes, value })
    }
}

/// Returns the number of backslashes directly before a place, none of them before `from`.
fn slashes_before(bytes: &[u8], from: usize, at: usize) -> usize {
    bytes[from..at].iter().rev().take_while(|it| **it == b'\\').count()
}

/// Returns the first place after spaces and the ends of lines, which are escaped in JSON within JSON.
fn after_blanks(bytes: &[u8], mut at: usize) -> usize {
    loop {
        let slashes = bytes[at..].iter().take_while(|it| **it == b'\\').count();
        match bytes.get(at + slashes) {
            Some(b' ' | b'\t' | b'\r' | b'\n') if slashes == 0 => at += 1,
            Some(b't' | b'r' | b'n') if slashes > 0 => at += slashes + 1,
            _ => return at,
        }
    }
}

/// Returns the place behind a value: behind a string, an object or a list, else at the end of the line
/// or at the next mark of JSON.
fn value_end(bytes: &[u8], start: usize, slashes: usize) -> usize {
    let (mut at, mut open) = (start, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let before = slashes_before(bytes, start, at);
                if before < slashes {
                    // The string around it ends.
                    return at - before;
                }
                at = string_end(bytes, at + 1, slashes);
                if open == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' if open == 0 => return at,
            b'}' | b']' => {
                open -= 1;
                if open == 0 {
                    return at + 1;
                }
            }
            b',' | b'\n' if open == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// Returns the place behind a string whose content begins at `start`.
fn string_end(bytes: &[u8], start: usize, slashes: usize) -> usize {
    let mut at = start;
    while let Some(found) = bytes[at..].iter().position(|it| *it == b'"') {
        let quote = at + found;
        let before = slashes_before(bytes, start, quote);
        if before < slashes {
            // The string around it ends.
            return quote - before;
        }
        // Each level of strings doubles the backslashes of its content, and adds one to its quotes:
        // 0, 1, 3, 7. A quote that is written by its number was one more backslash: 2, 4, 8.
        let by_number = slashes > 1 && slashes.is_power_of_two();
        let turn = if by_number { 4 * slashes } else { 2 * (slashes + 1) };
        if before % turn == slashes {
            return quote + 1;
        }
        at = quote + 1;
    }
    bytes.len()
}

/// Returns a key without what escapes it.
fn decoded(key: &str) -> String {
    let mut key = key.to_owned();
    for _ in 0..LEVELS {
        if !key.contains('\\') {
            break;
        }
        let Ok(next) = serde_json::from_str(&format!("\"{key}\"")) else { break };
        key = next;
    }
    key
}

/// Returns a text as a string of JSON, whose quotes have this number of backslashes before them.
fn literal(text: &str, slashes: usize) -> String {
    let mut literal = Value::from(text).to_string();
    let mut slashes = slashes;
    while slashes > 0 {
        let quoted = Value::from(literal).to_string();
        literal = quoted[1..quoted.len() - 1].to_owned();
        slashes /= 2;
    }
    literal
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn clean(text: &str) -> String {
        let mut value = Value::from(text);
        within(&mut value, &|key| {
            key.eq_ignore_ascii_case("password").then(|| "[redacted]".to_owned())
        });
        value.as_str().unwrap().to_owned()
    }

    #[test]
    fn the_values_of_redacted_keys_are_replaced_in_json_within_a_text() {
        for (text, expected) in [
            (r#"{"password":"a","n":1}"#, r#"{"password":"[redacted]","n":1}"#),
            (r#"It is {"Password" : "a\"b\\"} now"#, r#"It is {"Password" : "[redacted]"} now"#),
            (r#"{"password": {"a": ["x}", 2]}, "n": 1}"#, r#"{"password": "[redacted]", "n": 1}"#),
            (r#"{"password": 12}"#, r#"{"password": "[redacted]"}"#),
            (r#"5" wide {"password":"a"}"#, r#"5" wide {"password":"[redacted]"}"#),
            ("{\"p\\u0061ssword\":\"a\"}", "{\"p\\u0061ssword\":\"[redacted]\"}"),
            (r#"["password",{"password":"b"}]"#, r#"["password",{"password":"[redacted]"}]"#),
            ("{\n  \"password\":\n    \"é\"\n}", "{\n  \"password\":\n    \"[redacted]\"\n}"),
        ] {
            assert_eq!(clean(text), expected, "{text}");
        }
    }

    #[test]
    fn a_document_that_is_cut_off_shows_nothing_of_such_a_value() {
        for text in [
            r#"{"password": "abc"#,
            r#"{"password": "abc\"#,
            r#"{"password": {"abc": "abc"#,
            r#"{"password": ["abc", "abc"#,
            r#"{"password": abc"#,
        ] {
            let shown = clean(text);
            assert!(shown.ends_with(r#""[redacted]""#) && !shown.contains("abc"), "{shown}");
        }
        assert_eq!(clean(r#"{"password":"#), r#"{"password":"#);
    }

    #[test]
    fn json_as_a_string_of_json_is_searched_and_stays_json() {
        let inner = json!({"password": "a\"b\\", "list": ["password"], "n": 1}).to_string();
        let middle = json!({"body": inner, "n": 2}).to_string();
        let outer = json!({"body": middle, "n": 3}).to_string();
        let parsed: Value = serde_json::from_str(&clean(&outer)).unwrap();
        let middle: Value = serde_json::from_str(parsed["body"].as_str().unwrap()).unwrap();
        let inner: Value = serde_json::from_str(middle["body"].as_str().unwrap()).unwrap();
        assert_eq!(inner, json!({"password": "[redacted]", "list": ["password"], "n": 1}));
        assert_eq!((&middle["n"], &parsed["n"]), (&json!(2), &json!(3)));
    }

    #[test]
    fn quotes_that_are_written_by_their_number_hide_no_value() {
        for (text, expected) in [
            (
                r#"{"body":"{\u0022password\u0022:\u0022a\u0022,\u0022n\u0022:1}"}"#,
                r#"{"body":"{\"password\":\"[redacted]\",\"n\":1}"}"#,
            ),
            (
                r#"{"body":"{\u0022password\u0022:\"a\\\u0022b\"}"}"#,
                r#"{"body":"{\"password\":\"[redacted]\"}"}"#,
            ),
            (r#"{"password":"a\\u0022b"}"#, r#"{"password":"[redacted]"}"#),
            (r#"{"n":"\u0022word\u0022"}"#, r#"{"n":"\u0022word\u0022"}"#),
        ] {
            assert_eq!(clean(text), expected, "{text}");
        }
        let deep = clean(r#"{"a":"{\"b\":\"{\\u0022password\\u0022:\\u0022secret\\u0022}\"}"}"#);
        assert!(deep.contains("[redacted]") && !deep.contains("secret"), "{deep}");
        // As an encoder that writes a quote by its number would, at each of three levels.
        let written = |text: &str| text.replace('\\', r"\\").replace('"', r"\u0022");
        let inner = format!(r#"{{"password":"{}"}}"#, written(r#"a\\"tail"#));
        let middle = format!(r#"{{"b":"{}"}}"#, written(&inner));
        let deep = clean(&format!(r#"{{"a":"{}"}}"#, written(&middle)));
        assert!(deep.contains("[redacted]") && !deep.contains("tail"), "{deep}");
    }

    #[test]
    fn what_has_no_such_value_stays_as_it_is() {
        for text in [
            "",
            "\"",
            r#"say "password" twice"#,
            r#"{"password":null}"#,
            r#"{"word":"password: a"}"#,
            r#"{"x":"\\"}"#,
        ] {
            assert_eq!(clean(text), text);
        }
    }
}
