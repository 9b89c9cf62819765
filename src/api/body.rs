//! Request bodies: read within limits of size and time, parsed as JSON, refused with the position
//! of the error.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny, Visitor, value},
};
use serde_json::{error::Category, value::RawValue};

use super::app::Api;
use crate::door::{Code, Entered, Problem};

/// The maximum nesting depth of a body.
const MOST_DEPTH: usize = 100;

/// A raw body with its declared type.
#[derive(Debug)]
pub(super) struct Raw {
    /// The bytes.
    pub bytes: Bytes,
    /// The content type without its parameters, in lower case; empty if there is none.
    pub kind: String,
}

/// A body that was parsed as JSON.
#[derive(Debug)]
pub(super) struct Posted<T> {
    /// The parsed body.
    pub body: T,
    /// The bytes, for hashes.
    pub raw: Bytes,
}

impl FromRequest<Api> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let limit = Entered::most_bytes(request.extensions());
        let (parts, body) = request.into_parts();
        let kind = content_type(&parts.headers)?;
        let bytes = api.door.body(&parts, body, limit).await?;
        Ok(Self { bytes, kind })
    }
}

impl<T: DeserializeOwned> FromRequest<Api> for Posted<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let raw = Raw::from_request(request, api).await?;
        raw.expect_json()?;
        let body = read_json(&raw.bytes)?;
        Ok(Self { body, raw: raw.bytes })
    }
}

impl Raw {
    /// Refuses a body whose declared type is not JSON.
    pub(super) fn expect_json(&self) -> Result<(), Problem> {
        if self.is_untold() || self.is_json() {
            return Ok(());
        }
        let detail = format!("send application/json; {:?} is not supported here", self.kind);
        Err(Problem::new(Code::UnsupportedMediaType, detail))
    }

    /// Returns true if nobody said what it is: no type, or the one that curl sends where nobody
    /// said. Such a body is read as what the route takes; a page cannot send it, since its bearer
    /// needs a preflight.
    pub(super) fn is_untold(&self) -> bool {
        self.kind.is_empty() || self.kind == "application/x-www-form-urlencoded"
    }

    /// Returns true if the declared type is JSON.
    pub(super) fn is_json(&self) -> bool {
        self.kind == "application/json" || self.kind.ends_with("+json")
    }

    /// Returns the body as text.
    ///
    /// # Errors
    /// Fails when it is not UTF-8.
    pub(super) fn text(&self) -> Result<&str, Problem> {
        std::str::from_utf8(&self.bytes).map_err(|error| {
            let detail = format!("the body is not UTF-8 after {} bytes", error.valid_up_to());
            Problem::new(Code::InvalidBody, detail)
        })
    }
}

fn content_type(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(String::new()) };
    let text = value
        .to_str()
        .map_err(|_| Problem::new(Code::BadHeader, "the content type is not readable"))?;
    Ok(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Parses JSON; an empty body counts as `null`, for bodies that are optional.
///
/// # Errors
/// Fails when the body is not JSON or has another shape, with the position of the error.
pub(super) fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return serde_json::from_slice(b"null")
            .map_err(|_| Problem::new(Code::MalformedJson, "the body is empty"));
    }
    if depth(bytes) > MOST_DEPTH {
        let detail = format!("the body nests deeper than {MOST_DEPTH} levels");
        return Err(Problem::new(Code::InvalidBody, detail));
    }
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') && Shape::of::<T>() {
        // Serde reads an array as the fields of a struct, in their order.
        let message = "invalid type: sequence, expected an object";
        return Err(Problem::new(Code::InvalidBody, message).at("$"));
    }
    // The second pass tracks the path; only refused bodies need it.
    serde_json::from_slice(bytes).or_else(|_| explain(bytes))
}

/// A body that is an object with a list, and perhaps one more field.
pub(super) struct Items<'a> {
    /// The texts of the items: each of them may be refused by itself.
    pub(super) items: Vec<&'a str>,
    /// The text of the other field.
    pub(super) other: Option<&'a str>,
}

/// Reads a body that is an object with one list and perhaps one other field, without reading them.
///
/// # Errors
/// Fails when the body is not JSON or has another shape, or the list is too long.
pub(super) fn read_items<'a>(
    bytes: &'a [u8],
    list: &'static str,
    other: &'static str,
    most: usize,
) -> Result<Items<'a>, Problem> {
    // Serde skips over an item without recursion, so that its depth does not matter here.
    let mut fields: BTreeMap<&str, &RawValue> = match serde_json::from_slice(bytes) {
        Ok(fields) => fields,
        Err(error) if error.is_data() => {
            let detail = format!("expected an object with the list `{list}`");
            return Err(Problem::new(Code::InvalidBody, detail).at("$"));
        }
        Err(error) => return Err(malformed(&error)),
    };
    let (items, other_field) = (fields.remove(list), fields.remove(other));
    if let Some(unknown) = fields.keys().next() {
        let unknown: String = unknown.chars().take(64).collect();
        let detail = format!("unknown field `{unknown}`, expected `{list}` or `{other}`");
        return Err(Problem::new(Code::UnknownField, detail).at(format!("$.{unknown}")));
    }
    let at = format!("$.{list}");
    let Some(items) = items else {
        return Err(Problem::new(Code::InvalidBody, format!("missing field `{list}`")).at("$"));
    };
    let items: Vec<&RawValue> = serde_json::from_str(items.get())
        .map_err(|_| Problem::new(Code::InvalidBody, "expected a list").at(at.clone()))?;
    if items.len() > most {
        let detail = format!("a request has at most {most} of them, this one has {}", items.len());
        return Err(Problem::new(Code::InvalidBody, detail).at(at));
    }
    let items = items.into_iter().map(RawValue::get).collect();
    Ok(Items { items, other: other_field.map(RawValue::get) })
}

/// Reads a struct within a body, from an object only.
///
/// # Errors
/// Returns serde's error for another type, or for a wrong field.
pub(super) fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<T, D::Error> {
    let fields = serde_json::Map::deserialize(from)?;
    T::deserialize(serde_json::Value::Object(fields)).map_err(D::Error::custom)
}

/// Finds out whether a type reads the fields of a struct. It holds no data.
struct Shape;

impl Shape {
    const STRUCT: &'static str = "a struct";

    fn of<T: DeserializeOwned>() -> bool {
        T::deserialize(Self).is_err_and(|error| error.to_string() == Self::STRUCT)
    }
}

impl<'de> Deserializer<'de> for Shape {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(value::Error::custom("another type"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        Err(value::Error::custom(Self::STRUCT))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn explain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let path = match error.path().to_string().as_str() {
            "." => "$".to_owned(),
            path => format!("$.{path}"),
        };
        let inner = error.into_inner();
        match inner.classify() {
            Category::Data => {
                let message = inner.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                let unknown = message.starts_with("unknown field");
                let code = if unknown { Code::UnknownField } else { Code::InvalidBody };
                Problem::new(code, message).at(path)
            }
            // An enum that is `null` is a syntax error for serde_json.
            Category::Syntax if serde_json::from_slice::<IgnoredAny>(bytes).is_ok() => {
                Problem::new(Code::InvalidBody, "invalid value").at(path)
            }
            Category::Syntax | Category::Eof | Category::Io => malformed(&inner),
        }
    })?;
    from.end().map_err(|error| malformed(&error))?;
    Ok(read)
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(Code::MalformedJson, error.to_string())
}

/// Returns the nesting depth of brackets outside of strings; stops one above the limit.
fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
                if deepest > MOST_DEPTH {
                    return deepest;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::protocol::Json;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Order {
        item: String,
        #[serde(default)]
        parts: Vec<Part>,
        #[serde(default)]
        note: Option<Json>,
    }

    #[test]
    fn an_array_is_no_struct_and_a_null_enum_is_no_syntax_error() {
        assert_eq!(refusal(r#"["a"]"#), ("invalid_body", Some("$".to_owned())));
        let problem = read_json::<Option<Order>>(b" [null]").unwrap_err();
        assert_eq!(problem.code(), "invalid_body");
        assert_eq!(read_json::<Vec<u32>>(b"[1]").unwrap(), [1]);
        let op =
            |text: &str| read_json::<std::collections::BTreeMap<String, Kind>>(text.as_bytes());
        let problem = op(r#"{"kind": null}"#).unwrap_err();
        assert_eq!((problem.code().as_str(), problem.path()), ("invalid_body", Some("$.kind")));
        assert_eq!(op(r#"{"kind": nul}"#).unwrap_err().code(), "malformed_json");
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Some,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Part {
        size: u32,
    }

    fn refusal(text: &str) -> (&'static str, Option<String>) {
        let problem = read_json::<Order>(text.as_bytes()).unwrap_err();
        (problem.code().as_str(), problem.path().map(str::to_owned))
    }

    #[test]
    fn a_body_of_the_right_shape_is_read_and_its_values_kept_as_written() {
        let order: Order = read_json(br#"{"item":"a","note":{"x": 1.50}}"#).unwrap();
        assert_eq!(order.note.unwrap().as_str(), r#"{"x": 1.50}"#);
    }

    #[test]
    fn a_refusal_names_the_place() {
        let cases = [
            (
                r#"{"item":"a","parts":[{"size":1},{"size":"x"}]}"#,
                "invalid_body",
                "$.parts[1].size",
            ),
            (
                r#"{"item":"a","parts":[{"size":1,"colour":2}]}"#,
                "unknown_field",
                "$.parts[0].colour",
            ),
            (r#"{"item":"a","itme":"b"}"#, "unknown_field", "$.itme"),
            (r"{}", "invalid_body", "$"),
            (r"[]", "invalid_body", "$"),
        ];
        for (text, code, path) in cases {
            assert_eq!(refusal(text), (code, Some(path.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_malformed() {
        for text in ["", "  ", "{", "nope", r#"{"item":"a"} x"#, "{\"item\":\"\u{1}\"}"] {
            assert_eq!(refusal(text).0, "malformed_json", "{text:?}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_brackets_in_strings_do_not_nest() {
        let deep = format!(r#"{{"item":"a","note":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(refusal(&deep).0, "invalid_body");
        let text = format!(r#"{{"item":"\"{}"}}"#, "[".repeat(200));
        assert!(read_json::<Order>(text.as_bytes()).is_ok());
    }

    #[test]
    fn nothing_reads_as_an_absent_body() {
        assert_eq!(read_json::<Option<Order>>(b" ").unwrap(), None);
    }
}
