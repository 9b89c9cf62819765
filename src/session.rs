//! Mailboxes of sessions, which are connected remote operators.
//!
//! Owns who is connected as which operator, the seats that select a task's session, and the
//! numbered frames that a session has not acknowledged. A frame is durable before it is sent. A
//! session outlives its socket and the host process: unacknowledged frames are stored and sent
//! again after a reconnect. Knows nothing of sockets, runs and journals: the API sends the frames,
//! the engine decides about tasks. The operator `main_ai` dispatches through it.

mod connection;
mod frame;
mod hub;
mod lifetime;
mod link;
mod mailbox;
mod place;
mod queue;
mod scribe;

#[cfg(test)]
mod tests;

pub use frame::{Frame, Method, Note};
pub use hub::{Hub, Looks, SessionError};
pub use lifetime::Extended;
pub use link::{Link, LinkEnd};
pub use mailbox::{HeldAttempt, MOST_OPEN};
pub use place::{EVERY, Fallback, Outlook, Seat, Spawn};
pub use scribe::FrameWriter;
