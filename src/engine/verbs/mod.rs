//! What the API, the command line and embedders call.

pub(crate) mod auth;
pub(crate) mod backup;
pub(crate) mod begin;
pub(crate) mod blueprints;
pub(crate) mod copy;
pub(crate) mod document;
pub(crate) mod events;
pub(crate) mod facade;
pub(crate) mod fork;
pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod orchestrate;
pub(crate) mod replay;
pub(crate) mod respond;
pub(crate) mod retention;
pub(crate) mod runs;
pub(crate) mod safe_mode;
pub(crate) mod schedules;
pub(crate) mod session_keeper;
pub(crate) mod session_work;
pub(crate) mod sessions;
pub(crate) mod stage;
pub(crate) mod stored_state;
pub(crate) mod transfer;
pub(crate) mod watches;
pub(crate) mod workers;
