//! The parts of a request other than its body: the caller, ids in the path, the query, the
//! idempotency key.

use std::{str::FromStr, time::Duration};

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::request::Parts,
};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

use super::app::Api;
use crate::{
    blueprint::parse_duration,
    door::{Code, Entered, Problem},
    engine::{Bearer, Caller, Holder, IdempotencyKey},
    protocol::{IdError, TraceParent},
};

/// The default number of items of a page.
const DEFAULT_LIMIT: usize = 50;
/// The maximum number of items of a page.
const MOST_LIMIT: usize = 500;
/// The maximum time for which a request waits.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The maximum length of an idempotency key.
const MOST_KEY_CHARS: usize = 255;

/// The caller, which the door has authenticated, with the span that the request is a part of.
pub(super) struct Asker(pub Caller);

/// The bearer, of whatever kind, which the door has authenticated.
pub(super) struct AnyBearer(pub Bearer);

/// The holder of an attempt's handle, which the door has authenticated.
pub(super) struct Reporter(pub Holder);

impl FromRequestParts<Api> for Asker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        match Entered::take_bearer(&mut parts.extensions) {
            Some(Bearer::Caller(caller)) => {
                let header = parts.headers.get("traceparent");
                let trace = header.and_then(|it| TraceParent::parse(it.to_str().ok()?));
                Ok(Self(Caller { trace, ..caller }))
            }
            Some(Bearer::Holder(_)) | None => Err(not_let_in()),
        }
    }
}

impl FromRequestParts<Api> for Reporter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        match Entered::take_bearer(&mut parts.extensions) {
            Some(Bearer::Holder(holder)) => Ok(Self(holder)),
            Some(Bearer::Caller(_)) | None => Err(not_let_in()),
        }
    }
}

impl FromRequestParts<Api> for AnyBearer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Entered::take_bearer(&mut parts.extensions).map(Self).ok_or_else(not_let_in)
    }
}

/// Returns the problem for a row of the table whose rule does not match its handler.
pub(super) fn not_let_in() -> Problem {
    Problem::new(Code::Internal, "the route's rule and its handler differ")
}

/// The parameters in the path.
pub(super) struct At<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Path::from_request_parts(parts, api)
            .await
            .map(|Path(at)| Self(at))
            .map_err(|rejection| Problem::new(Code::BadId, rejection.body_text()))
    }
}

/// Parses an id of a path or query.
///
/// # Errors
/// Returns `bad_id` if the format is wrong, `not_found` if no id can be written like this.
pub(super) fn id<T: FromStr<Err = IdError>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: IdError| {
        if error.is_well_formed() {
            return Problem::new(Code::NotFound, format!("there is no {}", error.text));
        }
        let IdError { text, prefix } = error;
        let detail = format!("{text:?} is not an id: one is `{prefix}_` and 26 letters or digits");
        Problem::new(Code::BadId, detail)
    })
}

/// Parses the number of a step in a path.
///
/// # Errors
/// Returns `bad_id` if it is not a number.
pub(super) fn number(text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| {
        let text: String = text.chars().take(64).collect();
        Problem::new(Code::BadId, format!("{text:?} is not a step's number"))
    })
}

/// The query; unknown names are refused.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        Query::try_from_uri(&parts.uri).map(|Query(params)| Self(params)).map_err(|rejection| {
            let text = rejection.body_text();
            let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            bad_query(text)
        })
    }
}

/// The parameters of the query, in which `status` and `tag` may be given more than once.
pub(super) struct Listed<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Listed<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        // The values of a tag may contain commas, but no ends of lines.
        const NAMES: [(&str, &str); 2] = [("status=", ","), ("tag=", "%0A")];
        let mut pairs: Vec<String> = Vec::new();
        for pair in parts.uri.query().unwrap_or_default().split('&') {
            let name = NAMES.into_iter().find(|(name, _)| pair.starts_with(name));
            let first = name.and_then(|(name, between)| {
                let first = pairs.iter_mut().find(|it| it.starts_with(name))?;
                Some((first, between, &pair[name.len()..]))
            });
            match first {
                Some((first, between, value)) => first.extend([between, value]),
                None => pairs.push(pair.to_owned()),
            }
        }
        let uri = format!("{}?{}", parts.uri.path(), pairs.join("&"));
        parts.uri = uri.parse().map_err(|_| bad_query("it cannot be read"))?;
        let Params(params) = Params::from_request_parts(parts, api).await?;
        Ok(Self(params))
    }
}

/// Returns the problem of an invalid query.
pub(super) fn bad_query(detail: impl Into<String>) -> Problem {
    Problem::new(Code::BadQuery, detail)
}

/// Returns the number of items of a page.
///
/// # Errors
/// Returns `bad_query` if it is zero or too large.
pub(super) fn page_limit(asked: Option<usize>) -> Result<usize, Problem> {
    match asked {
        None => Ok(DEFAULT_LIMIT),
        Some(limit @ 1..=MOST_LIMIT) => Ok(limit),
        Some(_) => Err(bad_query(format!("limit is between 1 and {MOST_LIMIT}"))),
    }
}

/// Returns the time to wait, at most a minute; `None` if the request has none.
///
/// # Errors
/// Returns the parser's message; the caller adds the position.
pub(super) fn wait(asked: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(text) = asked else { return Ok(None) };
    let ms = parse_duration(text).map_err(|error| format!("failed to {error}"))?;
    Ok(Some(Duration::from_millis(ms).min(LONGEST_WAIT)))
}

/// A list that is never so long that it needs pages.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct All<T> {
    /// The items.
    items: Vec<T>,
    /// Always null: there is no next page.
    next_cursor: Option<String>,
}

impl<T> All<T> {
    /// Returns a list of `items`.
    pub(super) fn of(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// The idempotency key of a request, if there is one.
pub(super) struct Key {
    key: Option<String>,
    path: String,
}

impl FromRequestParts<Api> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self { key: None, path: String::new() });
        };
        let key = String::from_utf8_lossy(value.as_bytes());
        check_key(&key)
            .map_err(|rule| Problem::new(Code::BadHeader, format!("Idempotency-Key {rule}")))?;
        Ok(Self { key: Some(key.into_owned()), path: parts.uri.path().to_owned() })
    }
}

/// Returns the idempotency key of a session's frame.
///
/// # Errors
/// Returns `invalid_body` if no header could carry it.
pub(super) fn framed_key(key: Option<String>) -> Result<Option<String>, Problem> {
    let check = key.as_deref().map_or(Ok(()), check_key);
    check.map_err(|rule| Problem::new(Code::InvalidBody, rule).at("$.idempotency_key"))?;
    Ok(key)
}

/// Checks an idempotency key. Returns the rule that it breaks.
fn check_key(key: &str) -> Result<(), String> {
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_visible && (1..=MOST_KEY_CHARS).contains(&key.len()) {
        return Ok(());
    }
    Err(format!("has 1 to {MOST_KEY_CHARS} visible ASCII characters and no blanks"))
}

impl Key {
    /// Returns the key together with a hash of its request. The hash includes the path, so that a
    /// key that is reused for another run does not count as a repetition.
    pub(super) fn of(self, route: &'static str, body: &[u8]) -> Option<IdempotencyKey> {
        let key = self.key?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.path.len() as u64).to_le_bytes());
        hasher.update(self.path.as_bytes());
        hasher.update(body);
        Some(IdempotencyKey { route, key, body: hasher.finalize().to_hex().to_string() })
    }

    /// Returns the key without the hash.
    pub(super) fn bare(self) -> Option<String> {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RunId;

    #[test]
    fn an_id_of_another_form_is_refused_before_anything_is_looked_up() {
        assert!(id::<RunId>(&RunId::new(1, 1).to_string()).is_ok());
        assert_eq!(id::<RunId>("7").unwrap_err().code(), "bad_id");
        let nobodys = format!("run_{}", "a".repeat(26));
        assert_eq!(id::<RunId>(&nobodys).unwrap_err().code(), "not_found");
        assert_eq!(number("x").unwrap_err().code(), "bad_id");
    }

    #[test]
    fn a_page_has_fifty_items_unless_asked_and_never_over_five_hundred() {
        assert_eq!(page_limit(None).unwrap(), 50);
        assert_eq!(page_limit(Some(500)).unwrap(), 500);
        for limit in [0, 501] {
            assert_eq!(page_limit(Some(limit)).unwrap_err().code(), "bad_query");
        }
    }

    #[test]
    fn a_wait_is_capped_at_a_minute() {
        assert_eq!(wait(None), Ok(None));
        assert_eq!(wait(Some("30s")), Ok(Some(Duration::from_secs(30))));
        assert_eq!(wait(Some("5m")), Ok(Some(Duration::from_secs(60))));
        assert!(wait(Some("soon")).is_err());
    }

    #[test]
    fn the_same_key_for_another_run_is_another_request() {
        let key = |path: &str, body: &[u8]| {
            let key = Key { key: Some("k".to_owned()), path: path.to_owned() };
            key.of("signal", body).unwrap().body
        };
        assert_eq!(key("/a", b"1"), key("/a", b"1"));
        assert_ne!(key("/a", b"1"), key("/b", b"1"));
        assert_ne!(key("/a", b"1"), key("/a", b"2"));
    }
}
