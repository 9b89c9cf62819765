//! Authorization: roles, verbs, scopes, signed tokens and short handles.
//!
//! Owns the table of roles and verbs ([`permits`]), the narrowing rules, the claims and keys of the
//! JWT, and the handle that a language model can copy. Has no clock, no randomness and no IO: time,
//! seeds and key files come in as arguments, and the store owns revocation. The API checks before
//! every route, the dispatch stack before every dispatch.

mod claims;
mod ed25519;
mod foreign;
mod gate;
mod handle;
mod keys;
mod quota;
mod role;
mod scope;
mod verb;

pub(crate) use claims::account;
pub use claims::{
    Axis, Claims, ISSUER, LEEWAY_S, TaskClaim, TokenError, TokenKind, UNNAMED, Widening,
    is_same_subject, person,
};
pub use foreign::{Expected, ForeignError, ForeignKeys, claimed_issuer};
pub use gate::{Grant, Refusal, is_on_purpose, permits};
pub use handle::{AttemptId, Handle, HandleError, HandleKey, HandleSecret};
pub use keys::{KeyError, KeyRing, SigningKey};
pub use quota::{Quota, Quotas};
pub use role::{Role, UnknownRole};
pub use scope::{Need, Reach, Scope, ScopeError, ScopeKind, Scopes, StatePrefix};
pub use verb::{UnknownVerb, Verb};
