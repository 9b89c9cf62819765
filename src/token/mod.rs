//! Who may do what: roles, verbs, scopes, signed tokens and short handles.
//!
//! Owns the Role × Verb table ([`permits`]), the narrowing rules, the JWT's claims and keys, and
//! the handle that a language model can copy. Refuses clocks, randomness and IO: time, seeds and
//! key files come in as arguments, and revocation is the store's. The API asks before every route,
//! the dispatch stack before every dispatch.

mod claims;
mod ed25519;
mod gate;
mod handle;
mod keys;
mod quota;
mod role;
mod scope;
mod verb;

pub use claims::{
    Axis, Claims, ISSUER, LEEWAY_S, TaskClaim, TokenError, TokenKind, UNNAMED, Widening, person,
};
pub use gate::{Grant, Refusal, is_on_purpose, permits};
pub use handle::{AttemptId, Handle, HandleError, HandleKey, HandleSecret};
pub use keys::{KeyError, KeyRing, SigningKey};
pub use quota::{Quota, Quotas};
pub use role::{Role, UnknownRole};
pub use scope::{Need, Reach, Scope, ScopeError, ScopeKind, Scopes, StatePrefix};
pub use verb::{UnknownVerb, Verb};
