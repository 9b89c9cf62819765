//! Responses in the format of Open Responses, derived from the facts of a run.
//!
//! Owns the parsing of a request (items, tools, settings), the conversation that it continues, the
//! response object, the ordered events of a stream, and two other APIs for the same: the older chat
//! completions, and Anthropic's messages. All of it is pure: a request and the events of a run go in,
//! JSON comes out, and the same history always yields the same events with the same numbers. Refuses
//! what the protocol does not allow, and names the invalid parameter. [`multi_step`] is separate: it runs the loop of a response on a
//! custom store. The engine starts runs from requests, `api/responses/` handles HTTP.

#[cfg(feature = "host")]
pub mod chat;
#[cfg(feature = "host")]
pub mod messages;
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
