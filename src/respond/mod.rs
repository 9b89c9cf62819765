//! Responses: what a model said, in the shapes of Open Responses, made from the facts of a run.
//!
//! Owns reading a request (items, tools, settings), the conversation that it continues, the
//! response object, the events of a stream in their one order, and the older shape of chat
//! completions. All of it is pure: a request and the events of a run go in, JSON comes out, and
//! the same history always gives the same events under the same numbers. Refuses what the
//! protocol does not allow, with the parameter that is wrong. Beside it stands [`multi_step`]: the
//! loop of a response over a store of one's own. The engine starts runs from requests,
//! `api/responses/` speaks HTTP.

#[cfg(feature = "host")]
pub mod chat;
pub mod multi_step;
#[cfg(feature = "host")]
pub mod open_responses;

#[cfg(feature = "host")]
mod compaction;
#[cfg(feature = "host")]
mod emit;
#[cfg(feature = "host")]
mod input;
#[cfg(feature = "host")]
mod refused;
#[cfg(feature = "host")]
mod response;
#[cfg(feature = "host")]
mod stream;

#[cfg(feature = "host")]
pub use self::{
    compaction::{COMPACT_INSTRUCTIONS, compacted},
    emit::Event,
    input::candidates,
    refused::Refused,
    response::{RESPONSE_KEYS, run_of, shown_id},
    stream::{Fact, Stream, TRIGGER, Trigger},
};
