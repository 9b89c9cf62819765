//! The operator that asks a model, and hears its answer as it comes.
//!
//! | file | |
//! |---|---|
//! | [`settings`] | the keys in a configuration file |
//! | [`asker`] | on whose behalf a model is asked |
//! | [`provider`] | one request: its time limits, its bytes, its pieces |
//! | [`wire`] | which API is spoken: the request's body, and who reads the answer |
//! | [`chat`], [`responses`], [`anthropic`] | what is asked, in the words of that API |
//! | [`chat_answer`], [`responses_answer`], [`anthropic_answer`] | what comes back, event by event |
//! | [`content`] | what items are made of |
//! | [`draft`] | the answer so far: items, pieces, usage |
//! | [`wrong`] | what can be wrong with an answer, and the failure that it is |
//! | [`price`] | tokens to money |
//! | [`script`] | a model without a provider: turns from a file or a Lua function |
//!
//! Its input is a [`ModelRequest`](crate::protocol::ModelRequest), its output a
//! [`ModelReply`](crate::protocol::ModelReply). Refuses to try again: a failure says whether another
//! attempt may help and when, and the engine decides. Refuses to guess: an answer that is cut off,
//! malformed or too long is a failure, and the arguments of a call are the provider's own text.

mod anthropic;
mod anthropic_answer;
mod asker;
mod chat;
mod chat_answer;
mod content;
mod draft;
mod kind;
mod parts;
mod price;
mod provider;
mod responses;
mod responses_answer;
mod script;
mod settings;
mod wire;
mod wrong;

#[cfg(test)]
mod tests;

pub use script::{NO_TURN, ScriptedTurns};
pub(super) use settings::LlmSettings;
