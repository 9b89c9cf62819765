//! Blueprints and agents as models: the wire that clients of model APIs speak, held against the
//! Open Responses specification and against a checker of the order of events.

#[path = "../support/mod.rs"]
mod support;

mod checker;
mod clients;
mod conversations;
#[path = "../http/feed.rs"]
mod feed;
mod messages;
mod model;
mod plain;
mod probe;
mod restart;
mod socket;
mod wire;
