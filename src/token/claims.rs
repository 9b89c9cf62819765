//! The claims of a signed token, and the checks on them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Grant, Quotas, Role, Scopes, Verb};
use crate::protocol::{Code, TaskId};

/// The issuer of all tokens of this host.
pub const ISSUER: &str = "moonswarm";

/// Separates the role from the token's own id in the subject of an unnamed token.
pub const UNNAMED: char = '#';

/// Returns the person that a subject stands for. All unnamed tokens with the same maker and role
/// count as one person, so that a second token cannot give a second answer to the same task.
pub fn person(subject: &str) -> String {
    let named = |part: &str| part.split(UNNAMED).next().unwrap_or_default().to_owned();
    subject.split('/').map(named).collect::<Vec<_>>().join("/")
}

/// Returns true if two subjects are the same, without regard to the case of letters. Nobody can use
/// that to pass for another person: only an admin gives a token a name that is a whole subject.
pub fn is_same_subject(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// Returns the account of a token: its first ancestor below the owner.
pub(crate) fn account(subject: &str) -> &str {
    let mut end = 0;
    for part in subject.split('/') {
        end += part.len() + usize::from(end > 0);
        if !matches!(part, "admin" | "session") {
            break;
        }
    }
    &subject[..end]
}

/// The tolerated difference between two clocks, in seconds.
pub const LEEWAY_S: u64 = 30;

/// The kind of a token. Each kind has its own type and audience, so a token cannot be used as
/// another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A token for the HTTP API: people, programs, pull workers.
    Api,
    /// A token for one attempt of a task.
    Task,
    /// A token for one connected operator.
    Session,
}

impl TokenKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Api, Self::Task, Self::Session];

    /// Returns the header's `typ`.
    pub const fn typ(self) -> &'static str {
        match self {
            Self::Api => "moonswarm-api+jwt",
            Self::Task => "moonswarm-task+jwt",
            Self::Session => "moonswarm-session+jwt",
        }
    }

    /// Returns the claims' `aud`.
    pub const fn audience(self) -> &'static str {
        match self {
            Self::Api => "moonswarm:api",
            Self::Task => "moonswarm:task",
            Self::Session => "moonswarm:session",
        }
    }
}

/// The claims of a token. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The issuer: [`ISSUER`].
    pub iss: String,
    /// The audience of its kind.
    pub aud: String,
    /// The holder.
    pub sub: String,
    /// The token's id, which revocations refer to.
    pub jti: String,
    /// The time of issue.
    pub iat: u64,
    /// The start of validity: the time of issue. Not checked against the clock.
    pub nbf: u64,
    /// The time of expiry.
    pub exp: u64,
    /// The role, which bounds its verbs.
    pub role: Role,
    /// If set, the only verbs of the role that the token has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<BTreeSet<Verb>>,
    /// The scopes that the token reaches.
    pub scopes: Scopes,
    /// The `jti` of the token that it was narrowed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The attempt of a task token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskClaim>,
    /// The quotas of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
}

/// The attempt that a task token is valid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskClaim {
    /// The task.
    pub id: TaskId,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch when the attempt was opened.
    pub epoch: u32,
    /// The run's nonce; 0 for a run that was created before nonces existed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonce: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The reason why a token is refused. Each maps to a 401.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a signed token, or a claim is missing or malformed.
    #[error("malformed token: {0}")]
    Malformed(String),
    /// No key of this host has this key id, or the grace period of the key has ended.
    #[error("the signing key of the token is unknown or retired")]
    UnknownKey,
    /// The signature does not match.
    #[error("the signature of the token is invalid")]
    Signature,
    /// The token is of another kind.
    #[error("a {found} token is not accepted here")]
    WrongKind {
        /// Its `typ`, cut to 64 characters, or `foreign` if the audience does not match the kind.
        found: String,
    },
    /// The token has expired.
    #[error("the token expired {0} s ago")]
    Expired(u64),
}

impl TokenError {
    /// Returns a stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "token_malformed",
            Self::UnknownKey => "token_unknown_key",
            Self::Signature => "token_signature",
            Self::WrongKind { .. } => "token_wrong_kind",
            Self::Expired(_) => "token_expired",
        }
    }
}

/// A property in which a child token must not exceed its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// The role.
    Role,
    /// The verbs.
    Verbs,
    /// The scopes.
    Scopes,
    /// The time of expiry.
    Expiry,
    /// The start of validity.
    Start,
    /// The kind of token.
    Kind,
    /// The attempt.
    Attempt,
    /// The parent that the token names.
    Parent,
    /// The quotas.
    Quotas,
}

/// A child token that would exceed its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token cannot create a wider token: {} would be wider", self.axis.as_str())]
pub struct Widening {
    /// The first axis in which it would.
    pub axis: Axis,
}

impl Widening {
    /// Returns a stable code.
    pub const fn code(&self) -> Code {
        Code::TokenWidens
    }
}

impl Axis {
    /// Returns the word that error messages use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Verbs => "verbs",
            Self::Scopes => "scopes",
            Self::Expiry => "expiry",
            Self::Start => "start",
            Self::Kind => "kind",
            Self::Attempt => "attempt",
            Self::Parent => "parent",
            Self::Quotas => "quotas",
        }
    }
}

impl Claims {
    /// Creates the claims of a token of `kind`, valid from `now_s` for `ttl_s` seconds.
    pub fn new(
        kind: TokenKind,
        sub: impl Into<String>,
        jti: impl Into<String>,
        grant: Grant,
        now_s: u64,
        ttl_s: u64,
    ) -> Self {
        Self {
            iss: ISSUER.to_owned(),
            aud: kind.audience().to_owned(),
            sub: sub.into(),
            jti: jti.into(),
            iat: now_s,
            nbf: now_s,
            exp: now_s.saturating_add(ttl_s),
            role: grant.role,
            verbs: grant.verbs,
            scopes: grant.scopes,
            parent: None,
            task: None,
            quotas: None,
        }
    }

    /// Creates the claims of a worker's token: the worker's verbs, for one attempt of a task.
    pub fn for_attempt(
        task: TaskClaim,
        sub: impl Into<String>,
        jti: impl Into<String>,
        now_s: u64,
        ttl_s: u64,
    ) -> Self {
        let grant = Grant::new(Role::Worker, Scopes::task(task.id));
        Self { task: Some(task), ..Self::new(TokenKind::Task, sub, jti, grant, now_s, ttl_s) }
    }

    /// Sets `parent` as the token that this one was narrowed from.
    #[must_use]
    pub fn child_of(mut self, parent: &Self) -> Self {
        self.parent = Some(parent.jti.clone());
        self
    }

    /// Returns the kind that the audience names, if it is known.
    pub fn kind(&self) -> Option<TokenKind> {
        TokenKind::ALL.into_iter().find(|kind| kind.audience() == self.aud)
    }

    /// Returns the grant of the token.
    pub fn grant(&self) -> Grant {
        Grant { role: self.role, verbs: self.verbs.clone(), scopes: self.scopes.clone() }
    }

    /// Checks that the token has not expired, with a tolerance of [`LEEWAY_S`].
    ///
    /// `iat` and `nbf` are not checked. Only this host signs tokens, and never for a later start. A
    /// token that starts in the future was made before the host's clock was set back. To refuse it
    /// would lock out its owner and nobody else.
    ///
    /// # Errors
    /// Returns [`TokenError::Expired`] if the token has expired.
    pub fn check_time(&self, now_s: u64) -> Result<(), TokenError> {
        if self.exp.saturating_add(LEEWAY_S) <= now_s {
            return Err(TokenError::Expired(now_s - self.exp));
        }
        Ok(())
    }

    /// Checks that the token exceeds `parent` in no axis.
    ///
    /// # Errors
    /// Returns the first axis in which it exceeds `parent`.
    pub fn check_narrower(&self, parent: &Self) -> Result<(), Widening> {
        let (own, whole) = (self.grant(), parent.grant());
        let quotas = |claims: &Self| claims.quotas.unwrap_or_default();
        let axes = [
            (Axis::Role, parent.role.holds(self.role)),
            (Axis::Verbs, Verb::ALL.iter().all(|verb| !own.has(*verb) || whole.has(*verb))),
            (Axis::Scopes, parent.scopes.contain(&self.scopes)),
            (Axis::Expiry, self.exp <= parent.exp),
            (Axis::Start, self.nbf >= parent.nbf),
            (Axis::Kind, parent.task.is_none() || self.aud == parent.aud),
            (Axis::Attempt, parent.task.is_none() || self.task == parent.task),
            (Axis::Parent, self.parent.as_ref() == Some(&parent.jti)),
            (Axis::Quotas, quotas(self).fits(quotas(parent))),
        ];
        match axes.into_iter().find(|(_, narrower)| !narrower) {
            None => Ok(()),
            Some((axis, _)) => Err(Widening { axis }),
        }
    }

    /// Checks that a stored response that contains a token with these claims may be sent again to
    /// `asker`, who repeated the request with the same idempotency key. That is allowed only for a
    /// token that could have made these claims.
    ///
    /// # Errors
    /// Returns the first axis in which the claims exceed those of `asker`.
    pub fn check_repeatable(&self, asker: &Self) -> Result<(), Widening> {
        Self { parent: Some(asker.jti.clone()), ..self.clone() }.check_narrower(asker)
    }
}

#[cfg(test)]
mod tests;
