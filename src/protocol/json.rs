//! JSON as opaque text, which the engine passes on without reading it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// One valid JSON document, shared and never parsed again on its way through the engine.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Returns the document `null`.
    pub fn null() -> Self {
        Self(Arc::from("null"))
    }

    /// Accepts `text` as JSON without parsing it; for text that this crate encoded.
    pub fn from_trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Parses `text` and keeps it, if it is one JSON document.
    ///
    /// # Errors
    /// Returns the parser's error, with line and column.
    pub fn parse(text: impl Into<Arc<str>>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_str::<serde::de::IgnoredAny>(&text)?;
        Ok(Self(text))
    }

    /// Encodes a value.
    ///
    /// # Errors
    /// Fails when `T` cannot be serialized (a map with keys that are not strings, for example).
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|text| Self(text.into()))
    }

    /// Decodes into `T`.
    ///
    /// # Errors
    /// Fails when the document does not fit `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// Parses the document into a tree of values.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the length of the text in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the document is `null`.
    pub fn is_null(&self) -> bool {
        &*self.0 == "null"
    }

    /// Always returns false: an empty text is not a JSON document.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        Self(value.to_string().into())
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Serialized as itself in a JSON document, and as a string in a binary format.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            let raw: &RawValue =
                serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
            raw.serialize(to)
        } else {
            to.serialize_str(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            let raw = Box::<RawValue>::deserialize(from)?;
            Ok(Self(Box::<str>::from(raw).into()))
        } else {
            // Stored values are validated on read: damage is detected here, and not in the middle
            // of a response.
            let text = String::deserialize(from)?;
            Self::parse(text).map_err(|_| serde::de::Error::custom("a value is no JSON"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_as_it_was_written() {
        let json = Json::parse(r#"{"b":1, "a":[1.50]}"#).unwrap();
        assert_eq!(json.as_str(), r#"{"b":1, "a":[1.50]}"#);
        assert!(Json::parse("{").is_err());
        assert!(Json::parse("1 2").is_err());
    }

    #[test]
    fn it_stands_as_itself_in_json_and_as_text_in_postcard() {
        #[derive(Serialize, Deserialize, PartialEq, Debug)]
        struct Row {
            v: Json,
        }
        let row = Row { v: Json::parse("[1,2]").unwrap() };
        assert_eq!(serde_json::to_string(&row).unwrap(), r#"{"v":[1,2]}"#);
        let bytes = postcard::to_stdvec(&row).unwrap();
        assert_eq!(postcard::from_bytes::<Row>(&bytes).unwrap(), row);
        let broken = postcard::to_stdvec(&Row { v: Json::from_trusted("[1,2") }).unwrap();
        assert!(postcard::from_bytes::<Row>(&broken).is_err());
    }
}
