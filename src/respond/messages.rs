//! Messages, Anthropic's API for the same responses: requests are converted to requests for a
//! response, and responses to messages and their events.
//!
//! As with chat completions, a call is shown only if the client must answer it, and each call is
//! sent as a whole when the agent's loop has ended.

mod answer;
mod request;
mod stream;

pub use answer::message;
pub use request::{as_response, stops};
pub use stream::Events;
