//! The door: the checks that every request passes before it reaches a handler.
//!
//! Owns the accept loop, the checks in their order (Host, Origin, bearer, rate, verb, place), the
//! places and rates of each credential, the error codes and the only mapping from errors to HTTP
//! statuses. Refuses requests that are too large, too slow, too frequent or unauthorized before the
//! engine sees them. Scopes are checked by the engine. The service behind the door (today the API)
//! provides a router with a rule for each route; `host.rs` mounts and serves it.

mod answers;
mod arrival;
mod away;
mod body;
mod config;
mod connections;
mod cors;
mod entered;
mod forward;
mod front;
mod help;
mod hop;
mod keyed;
mod length;
mod linger;
mod links;
mod node_keys;
mod oidc;
mod origin;
mod outgoing;
mod pass;
mod patient;
mod peer;
mod people;
mod percent;
mod person;
mod places;
mod problem;
mod proof;
mod rate;
mod reach;
mod returned;
mod server;
mod shares;
mod tls;
mod unanswered;
mod waits;

pub(crate) use arrival::Arrival;
pub use config::{DoorConfig, Limits};
pub(crate) use entered::{Credential, Entered, Rule, Who};
pub use forward::{Forwarder, PeersSay};
pub use front::{Front, IsTrusted};
pub use help::{HelpRequest, HelpStream, OnHelp};
pub use keyed::KeyedRoutes;
pub use node_keys::NodeKeys;
pub(crate) use oidc::{ATTEMPT_MS, Attempt, CALLBACK};
pub use pass::Door;
pub(crate) use pass::{bearer, pass};
pub use peer::Listener;
pub use people::People;
pub(crate) use people::Tokens;
pub(crate) use percent::{URL_RESERVED, percent_encoded};
pub(crate) use places::Place;
pub(crate) use problem::{
    FindingBody, MessageErrorBody, ModelErrorBody, Problem, ProblemBody, Shape,
};
pub use proof::PeopleError;
pub use server::{Routes, serve};
pub use tls::{Certificate, Looked, Tls, TlsError, TlsFiles, Validity, fingerprint};

pub(crate) use crate::protocol::Code;
