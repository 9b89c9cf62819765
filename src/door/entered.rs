//! The record that the checks attach to a request: the rule of its route, its bearer and its place.

use std::sync::Arc;

use axum::{
    http::{Extensions, StatusCode},
    response::Response,
};

use super::{places::Place, problem::Shape};
use crate::{
    engine::{Bearer, Engine, EngineError},
    token::Verb,
};

/// The requirements of a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// The callers it accepts.
    pub who: Who,
    /// The maximum size of the body in bytes.
    pub body: usize,
    /// The page shown to a browser without a bearer, where one can be entered.
    pub page: Option<fn(StatusCode) -> Response>,
    /// The shape of its errors.
    pub shape: Shape,
}

/// The callers that a route accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Everybody, even when all places are taken.
    Anybody,
    /// Everybody; the bearer of a caller who sends one must have this verb.
    Welcome(Verb),
    /// Everybody who knows the path, also from a page without a referrer, whose forms have the origin
    /// `null`.
    Linked,
    /// Holders of any valid bearer.
    AnyBearer,
    /// Holders of an API token with this verb.
    Caller(Verb),
    /// Holders of the credential of an attempt, with this verb.
    Holder(Verb),
}

impl Who {
    /// Returns the required verb.
    pub(crate) fn verb(self) -> Option<Verb> {
        match self {
            Self::Anybody | Self::Linked | Self::AnyBearer => None,
            Self::Welcome(verb) | Self::Caller(verb) | Self::Holder(verb) => Some(verb),
        }
    }
}

/// The record of a request that was let in. It is one extension, because each is an allocation.
#[derive(Debug, Clone)]
pub(crate) struct Entered {
    /// The requirements of its route.
    pub rule: Rule,
    /// Its bearer, until an extractor takes it; none where nothing is needed.
    pub bearer: Option<Bearer>,
    /// The place of its bearer.
    pub place: Option<Arc<Place>>,
    /// The token that it is let in with.
    pub given: Option<Arc<Credential>>,
}

impl Entered {
    /// Returns the bearer of a request.
    pub(crate) fn bearer_of(extensions: &Extensions) -> Option<&Bearer> {
        extensions.get::<Self>()?.bearer.as_ref()
    }

    /// Takes the bearer out of a request.
    pub(crate) fn take_bearer(extensions: &mut Extensions) -> Option<Bearer> {
        extensions.get_mut::<Self>()?.bearer.take()
    }

    /// Counts the body of a request against a place.
    pub(crate) fn put_place(extensions: &mut Extensions, place: Arc<Place>) {
        let entered = extensions.get_mut::<Self>().expect("the door has let the request in");
        entered.place = Some(place);
    }

    /// Returns the maximum size of the body of a request.
    pub(crate) fn most_bytes(extensions: &Extensions) -> usize {
        extensions.get::<Self>().map_or(0, |it| it.rule.body)
    }
}

/// The token that a request is let in with.
#[derive(Debug)]
pub(crate) struct Credential {
    /// A token of this host, or a handle.
    pub(super) token: String,
    /// The end of what it was given for, in milliseconds.
    pub(super) until_ms: u64,
    /// True if the request had something else: the word of a proxy, or a foreign token.
    pub(super) instead: bool,
}

impl Credential {
    /// Returns the bearer, as long as it is good.
    ///
    /// # Errors
    /// Fails when the token was revoked, or it or what it was given for has expired.
    pub(crate) fn bearer(&self, engine: &Engine, now_ms: u64) -> Result<Bearer, EngineError> {
        if now_ms >= self.until_ms {
            return Err(expired());
        }
        engine.authenticate(&self.token)
    }
}

/// Returns the error of a request whose token was given for a time that is over.
pub(super) fn expired() -> EngineError {
    EngineError::Unauthenticated("the token has expired".to_owned())
}
