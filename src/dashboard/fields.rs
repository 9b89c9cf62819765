//! The fields of a form that was sent, and those of a query.

use axum::{
    body::Body,
    extract::{FromRequestParts, Query},
    http::{HeaderValue, Uri, header, request::Parts},
};

use super::desk::Desk;
use crate::{
    door::{Code, Entered, Problem},
    engine::IdempotencyKey,
};

/// The maximum number of fields.
const MOST_FIELDS: usize = 1_000;
/// The maximum length of the field by which a form that is sent twice is known, in bytes.
const MOST_ONCE: usize = 64;

/// Named texts, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads the body of a form, within the limits of its route.
    ///
    /// # Errors
    /// Fails when it is too large, too slow or not a form.
    pub(super) async fn read(parts: &mut Parts, body: Body, desk: &Desk) -> Result<Self, Problem> {
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        if parts.headers.get(header::CONTENT_TYPE) != Some(&form) {
            let detail = "a form is sent as application/x-www-form-urlencoded";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let limit = Entered::most_bytes(&parts.extensions);
        let bytes = desk.door.body(parts, body, limit).await?;
        let not_one = || Problem::new(Code::BadRequest, "the body is not a form");
        let text = std::str::from_utf8(&bytes).map_err(|_| not_one())?;
        Self::parse(text).ok_or_else(not_one)
    }

    /// Reads `a=b&c=d`.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if fields.len() == MOST_FIELDS {
                return None;
            }
            fields.push((decoded(name)?, decoded(value)?));
        }
        Some(Self(fields))
    }

    /// Returns the fields of a text, for tests.
    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Self {
        Self::parse(text).expect("a form")
    }

    /// Returns the fields of a form that was filled in.
    pub(super) fn of<const N: usize>(fields: [(&str, String); N]) -> Self {
        Self(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Returns the first field of a name; empty if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Returns the first field of a name, unless it is empty.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.trim().is_empty())
    }

    /// Returns the key under which a form has its effect once, however often it is sent; `body` is
    /// all that it asks for.
    pub(super) fn once(&self, route: &'static str, body: &str) -> Option<IdempotencyKey> {
        let key = self.given("once").filter(|once| once.len() <= MOST_ONCE)?.to_owned();
        let body = blake3::hash(body.as_bytes()).to_hex().to_string();
        Some(IdempotencyKey { route, key, body })
    }

    /// Returns every field of a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Returns a text of a form; `None` if it is malformed.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl FromRequestParts<Desk> for Fields {
    type Rejection = Problem;

    /// Takes the fields of a form that passed, or those of the query of a page.
    async fn from_request_parts(parts: &mut Parts, _: &Desk) -> Result<Self, Problem> {
        match parts.extensions.remove::<Self>() {
            Some(fields) => Ok(fields),
            None => of_query(&parts.uri),
        }
    }
}

fn of_query(uri: &Uri) -> Result<Fields, Problem> {
    match Query::<Vec<(String, String)>>::try_from_uri(uri) {
        Ok(Query(fields)) => Ok(Fields(fields)),
        Err(rejection) => Err(Problem::new(Code::BadQuery, rejection.body_text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_as_a_browser_writes_it() {
        let fields =
            Fields::parse("a=1+2&b=%3Cscript%3E&a=3&empty=&caf%C3%A9=%F0%9F%8C%99").unwrap();
        assert_eq!((fields.text("a"), fields.text("b")), ("1 2", "<script>"));
        assert_eq!(fields.all("a").collect::<Vec<_>>(), ["1 2", "3"]);
        assert_eq!((fields.given("empty"), fields.text("none")), (None, ""));
        assert_eq!(fields.text("café"), "🌙");
    }

    #[test]
    fn a_broken_or_endless_form_is_refused() {
        assert!(Fields::parse("a=%zz").is_none() && Fields::parse("a=%f").is_none());
        assert!(Fields::parse("a=%ff").is_none(), "it is not UTF-8");
        assert!(Fields::parse(&"a=1&".repeat(MOST_FIELDS + 1)).is_none());
    }
}
