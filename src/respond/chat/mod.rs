//! Chat completions, the older shape of the same: requests become requests for a response, and
//! responses become completions and their chunks.
//!
//! A call is shown only if it is the client's to answer. Calls come whole, in one chunk: whose
//! they are is known once the agent's loop has ended.

mod answer;
mod request;
mod stop;

pub use answer::{Chunks, completion};
pub use request::as_response;
pub use stop::Stops;
