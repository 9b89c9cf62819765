//! Values that the settings of several kinds share.

use std::{collections::BTreeMap, fmt, time::Duration};

use reqwest::{Url, header::HeaderName};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};

use crate::{blueprint::parse_duration, environment::Text};

/// The longest duration in settings.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Deserializes `"90s"`, `"20m"`: more than zero, at most 30 days.
pub(in crate::operator) fn duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let ms = parse_duration(&text)
        .map_err(|error| D::Error::custom(format!("{text:?} is no duration: {error}")))?;
    let span = Duration::from_millis(ms);
    match span {
        Duration::ZERO => Err(D::Error::custom("it leaves no time at all")),
        span if span > MAX_TIMEOUT => Err(D::Error::custom("it is longer than 30 days")),
        span => Ok(span),
    }
}

/// Deserializes an http or https URL with a host and without a password.
pub(in crate::operator) fn url<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Url, D::Error> {
    let text = String::deserialize(deserializer)?;
    let url: Url =
        text.parse().map_err(|error| D::Error::custom(format!("it is no address: {error}")))?;
    let plain = url.username().is_empty() && url.password().is_none();
    match url.scheme() {
        "http" | "https" if plain && url.has_host() => Ok(url),
        "http" | "https" => {
            Err(D::Error::custom("an address has no user and password; `headers` take secrets"))
        }
        other => Err(D::Error::custom(format!("an address is http or https, not {other}"))),
    }
}

/// Deserializes an optional URL.
pub(in crate::operator) fn maybe_url<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Url>, D::Error> {
    url(deserializer).map(Some)
}

/// Deserializes a table of environment variables.
pub(in crate::operator) fn variables<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Text>, D::Error> {
    let variables = BTreeMap::<String, Text>::deserialize(deserializer)?;
    let bad = variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0']));
    match bad {
        Some(name) => Err(D::Error::custom(format!("{name:?} is not a variable's name"))),
        None => Ok(variables),
    }
}

/// The name of a header that a file may set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::operator) struct HeaderNameText(pub(in crate::operator) String);

/// Headers that the host sets itself.
const OURS: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "transfer-encoding",
    "upgrade",
    "te",
];

impl<'de> Deserialize<'de> for HeaderNameText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HeaderNameVisitor)
    }
}

struct HeaderNameVisitor;

impl Visitor<'_> for HeaderNameVisitor {
    type Value = HeaderNameText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a header")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HeaderNameText, E> {
        let name = text
            .parse::<HeaderName>()
            .map_err(|_| E::custom(format!("{text:?} is not the name of a header")))?;
        if OURS.contains(&name.as_str()) {
            return Err(E::custom(format!("the header {text} is set by the host")));
        }
        Ok(HeaderNameText(name.as_str().to_owned()))
    }
}
