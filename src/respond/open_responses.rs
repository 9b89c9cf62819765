//! Requests in the format of Open Responses: parameters and the items of a conversation.

mod fields;
mod items;
mod request;

pub(crate) use fields::Fields;
pub(crate) use items::read_items;
pub use items::{Conversation, MOST_ITEMS, last_text};
pub(crate) use request::check_metadata;
pub use request::{Create, MOST_TOOLS};
