//! Durations in the settings of layers: `"30s"`, or a number of seconds.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::blueprint::{parse_duration, spelled_duration};

/// A duration, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

/// Writes a text such as `"1h30m"`: a number would be read as seconds.
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&spelled_duration(self.0))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Whole(u64),
    Part(f64),
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let shape =
            || D::Error::custom("a duration is a text such as \"30s\", or a number of seconds");
        let text = match Written::deserialize(from).map_err(|_| shape())? {
            Written::Text(text) => text,
            Written::Whole(seconds) => seconds.to_string(),
            Written::Part(seconds) if seconds >= 0.0 => seconds.to_string(),
            Written::Part(_) => return Err(shape()),
        };
        parse_duration(&text)
            .map(Self)
            .map_err(|error| D::Error::custom(format!("failed to {error}")))
    }
}
