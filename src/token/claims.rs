//! What a signed token says, and what makes it good at a moment.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Grant, Quotas, Role, Scopes, Verb};
use crate::protocol::TaskId;

/// Who issues every token of this host.
pub const ISSUER: &str = "moonswarm";

/// What stands in the subject of a token without a name, between its role and what is its own.
pub const UNNAMED: char = '#';

/// The person whom a subject stands for. Unnamed tokens of one maker and role are one person's,
/// however many there are: being asked for two answers is no reason to make two tokens.
pub fn person(subject: &str) -> String {
    let named = |part: &str| part.split(UNNAMED).next().unwrap_or_default().to_owned();
    subject.split('/').map(named).collect::<Vec<_>>().join("/")
}

/// How far two clocks may differ, in seconds.
pub const LEEWAY_S: u64 = 30;

/// What a token is for; each kind has a type and an audience of its own, so that one is never
/// taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// For the HTTP API: people, programs, pull workers.
    Api,
    /// For one attempt at one task.
    Task,
    /// For one connected operator.
    Session,
}

impl TokenKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Api, Self::Task, Self::Session];

    /// The header's `typ`.
    pub const fn typ(self) -> &'static str {
        match self {
            Self::Api => "moonswarm-api+jwt",
            Self::Task => "moonswarm-task+jwt",
            Self::Session => "moonswarm-session+jwt",
        }
    }

    /// The claims' `aud`.
    pub const fn audience(self) -> &'static str {
        match self {
            Self::Api => "moonswarm:api",
            Self::Task => "moonswarm:task",
            Self::Session => "moonswarm:session",
        }
    }
}

/// What a token says. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Who issued it: [`ISSUER`].
    pub iss: String,
    /// What it is for: a kind's audience.
    pub aud: String,
    /// Who holds it.
    pub sub: String,
    /// Its own name; what a revocation names.
    pub jti: String,
    /// When it was issued.
    pub iat: u64,
    /// When it becomes good: when it was issued. It is not held against the clock.
    pub nbf: u64,
    /// When it ceases to be good.
    pub exp: u64,
    /// What its holder may do, and reach.
    pub role: Role,
    /// The only verbs of the role that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<BTreeSet<Verb>>,
    /// What it reaches.
    pub scopes: Scopes,
    /// The `jti` of the token that it was narrowed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The attempt that it is for, in a task token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskClaim>,
    /// How much may be done and kept under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
}

/// The attempt that a task token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskClaim {
    /// The task.
    pub id: TaskId,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch when the attempt was opened.
    pub epoch: u32,
    /// The run's nonce; 0 for a run that was created before there were any.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonce: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why a token is not good; every one of them is a 401.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not a signed token, or one of its claims is missing or has another form.
    #[error("malformed token: {0}")]
    Malformed(String),
    /// No key of this host has its key id, or that key's grace is over.
    #[error("the signing key of the token is unknown or retired")]
    UnknownKey,
    /// Its signature does not fit.
    #[error("the signature of the token is invalid")]
    Signature,
    /// It is for something else.
    #[error("a {found} token is not accepted here")]
    WrongKind {
        /// Its `typ`, cut to 64 characters, or `foreign` when its audience is not its kind's.
        found: String,
    },
    /// Its time is over.
    #[error("the token expired {0} s ago")]
    Expired(u64),
}

impl TokenError {
    /// A word that never changes.
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

/// What a child token must not have more of than its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Who holds it.
    Role,
    /// What it may do.
    Verbs,
    /// What it reaches.
    Scopes,
    /// When it ends.
    Expiry,
    /// When it begins.
    Start,
    /// What it is for.
    Kind,
    /// Which attempt it is for.
    Attempt,
    /// Which token it names as its parent.
    Parent,
    /// How much may be done and kept under it.
    Quotas,
}

/// A child token that would have more than its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token cannot create a wider token: {} would be wider", self.axis.as_str())]
pub struct Widening {
    /// In what.
    pub axis: Axis,
}

impl Widening {
    /// A word that never changes.
    pub const fn code(&self) -> &'static str {
        "token_widens"
    }
}

impl Axis {
    /// The word that refusals use.
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
    /// What a token of `kind` says that is good from `now_s` for `ttl_s` seconds.
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

    /// What a worker's token says: the worker's verbs, for one attempt at one task.
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

    /// The same, naming the token that it was narrowed from.
    #[must_use]
    pub fn child_of(mut self, parent: &Self) -> Self {
        self.parent = Some(parent.jti.clone());
        self
    }

    /// The kind that the audience says, if it is one.
    pub fn kind(&self) -> Option<TokenKind> {
        TokenKind::ALL.into_iter().find(|kind| kind.audience() == self.aud)
    }

    /// What it allows.
    pub fn grant(&self) -> Grant {
        Grant { role: self.role, verbs: self.verbs.clone(), scopes: self.scopes.clone() }
    }

    /// Whether its time is not over, within [`LEEWAY_S`].
    ///
    /// `iat` and `nbf` are not looked at. Only this host signs, and it signs no token for later:
    /// one that begins in the future was made before the host's clock was set back, and refusing it
    /// would lock out its owner and nobody else.
    ///
    /// # Errors
    /// When it has expired.
    pub fn check_time(&self, now_s: u64) -> Result<(), TokenError> {
        if self.exp.saturating_add(LEEWAY_S) <= now_s {
            return Err(TokenError::Expired(now_s - self.exp));
        }
        Ok(())
    }

    /// Whether it has no more than `parent` in any way.
    ///
    /// # Errors
    /// The first axis in which it has more.
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

    /// Whether an answer that carries a token with these claims may be repeated to `asker`, who
    /// sent the request with the same key again: only to a token that could have made it.
    ///
    /// # Errors
    /// The first axis in which they have more.
    pub fn check_repeatable(&self, asker: &Self) -> Result<(), Widening> {
        Self { parent: Some(asker.jti.clone()), ..self.clone() }.check_narrower(asker)
    }
}

#[cfg(test)]
mod tests;
