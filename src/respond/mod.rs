//! Responses: what a model said, in the shapes of Open Responses, made from the facts of a run.
//!
//! Owns reading a request (items, tools, settings), the conversation that it continues, the
//! response object, the events of a stream in their one order, and the older shape of chat
//! completions. All of it is pure: a request and the events of a run go in, JSON comes out, and
//! the same history always gives the same events under the same numbers. Refuses what the
//! protocol does not allow, with the parameter that is wrong. Beside it stands [`multi_step`]: the
//! loop of a response over a store of one's own. `engine/respond.rs` starts runs from
//! it, `api/responses/` speaks HTTP.

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
