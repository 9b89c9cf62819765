//! The person behind a request: the caller that the door let in, and how the page is to look.

use axum::{
    extract::FromRequestParts,
    http::{Method, header, request::Parts},
};

use super::{desk::Desk, sign_in::SignedIn};
use crate::{
    door::{Code, Entered, Problem},
    engine::{Bearer, Caller},
    protocol::IdError,
    token::Verb,
};

/// The choice of colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Theme {
    /// As the system prefers.
    #[default]
    System,
    /// Light.
    Light,
    /// Dark.
    Dark,
}

impl Theme {
    /// Returns the word in the cookie and in the page.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// Returns the theme of a word; the system's for any other.
    pub(super) fn of(word: &str) -> Self {
        match word {
            "light" => Self::Light,
            "dark" => Self::Dark,
            _ => Self::System,
        }
    }
}

/// The facts of a request that a page needs.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    /// The caller.
    pub caller: Caller,
    /// The sign-in.
    pub signed_in: SignedIn,
    /// The choice of colors.
    pub theme: Theme,
    /// The URL of this host, as the browser knows it.
    pub url: String,
    /// The path and query of the page.
    pub at: String,
    /// The time, in Unix milliseconds.
    pub now_ms: u64,
}

impl Visitor {
    /// Returns true if the token has a verb, regardless of scopes.
    pub(super) fn may(&self, verb: Verb) -> bool {
        self.caller.grant.has(verb)
    }
}

impl Visitor {
    /// Returns true if the page shows texts as they were written, and not as Markdown.
    pub(super) fn raw(&self) -> bool {
        self.at.split(['?', '&']).skip(1).any(|pair| pair == "raw=1")
    }
}

impl FromRequestParts<Desk> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, desk: &Desk) -> Result<Self, Problem> {
        let bearer = Entered::bearer_of(&parts.extensions);
        let signed_in = parts.extensions.get::<SignedIn>();
        let (Some(Bearer::Caller(caller)), Some(signed_in)) = (bearer, signed_in) else {
            return Err(Problem::new(Code::Internal, "the route's rule and its handler differ"));
        };
        Ok(Self {
            caller: caller.clone(),
            signed_in: signed_in.clone(),
            theme: theme(parts),
            url: url(parts),
            at: match (&parts.method, parts.uri.path_and_query()) {
                // Live fragments have the links of their page.
                (&Method::GET, Some(at)) => at.as_str().replacen("/ui/live/", "/ui/", 1),
                // A form is no page to come back to.
                _ => "/ui".to_owned(),
            },
            now_ms: desk.door.clock.now_ms(),
        })
    }
}

/// Returns the choice of colors in the cookie.
fn theme(parts: &Parts) -> Theme {
    super::headers::cookie(&parts.headers, "theme").map(Theme::of).unwrap_or_default()
}

/// Returns the URL under which the browser reached this host.
fn url(parts: &Parts) -> String {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(axum::http::uri::Authority::as_str));
    let arrival = parts.extensions.get().cloned().unwrap_or_default();
    let secure = super::headers::is_secure(&arrival, &parts.headers);
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{}", host.unwrap_or("localhost"))
}

/// Parses an id in a path: whatever is none is not found.
///
/// # Errors
/// Returns `not_found`.
pub(super) fn id<T: std::str::FromStr<Err = IdError>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| {
        let text: String = text.chars().take(64).collect();
        Problem::new(Code::NotFound, format!("there is no {text:?}"))
    })
}
