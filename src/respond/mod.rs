//! Responses in the format of Open Responses, derived from the facts of a run.
//!
//! Owns the parsing of a request (items, tools, settings), the conversation that it continues, the
//! response object, the ordered events of a stream, and the older chat completions API. All of it
//! is pure: a request and the events of a run go in, JSON comes out, and the same history always
//! yields the same events with the same numbers. Refuses what the protocol does not allow, and
//! names the invalid parameter. [`multi_step`] is separate: it runs the loop of a response on a
//! custom store. `engine/respond.rs` starts runs from requests, `api/responses/` handles HTTP.

pub mod chat;
pub mod multi_step;
pub mod open_responses;

mod compaction;
mod emit;
mod input;
mod refused;
mod response;
mod stream;

pub use compaction::{COMPACT_INSTRUCTIONS, compacted};
pub use emit::Event;
pub use input::candidates;
pub use refused::Refused;
pub use response::{RESPONSE_KEYS, run_of, shown_id};
pub use stream::{Fact, Stream, TRIGGER, Trigger};
