//! Chat completions, an older API for the same responses: requests are converted to requests for a
//! response, and responses to completions and their chunks.
//!
//! A call is shown only if the client must answer it. Each call is sent as a whole, in one chunk,
//! because its owner is known only when the agent's loop has ended.

mod answer;
mod request;
mod stop;

pub use answer::{Chunks, completion};
pub use request::as_response;
pub use stop::Stops;
