//! Sessions: remote parties that operate, as mailboxes.
//!
//! Owns who is connected as which operator, the seats by which a task finds its session, the
//! numbered frames that a session has not acknowledged, and how they become durable before they
//! are sent. A session outlives its socket and the host: what it was told is stored, and sent
//! again to whoever comes back. Refuses to know sockets, runs and journals: the API moves the
//! frames, the engine says what becomes of a task. The operator `main_ai` spawns through it.

mod frame;
mod hub;
mod link;
mod mailbox;
mod place;
mod scribe;

#[cfg(test)]
mod tests;

pub use frame::{Frame, Method, Note};
pub use hub::{Hub, Looks, SessionError};
pub use link::{End, Link};
pub use mailbox::{Held, MOST_OPEN};
pub use place::{Outlook, Seat, Spawn};
pub use scribe::Scribe;
