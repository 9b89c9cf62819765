//! Requests in the shapes of Open Responses: their parameters, and the items of a conversation.

mod items;
mod request;

pub(crate) use items::read_items;
pub use items::{Conversation, last_text};
pub(crate) use request::Fields;
pub use request::{Create, MOST_ITEMS, MOST_TOOLS};
