//! The operator that calls a model and streams its answer.
//!
//! | file | |
//! |---|---|
//! | [`settings`] | the settings in a configuration file |
//! | [`asker`] | the caller of a model: an attempt, or a program without a task |
//! | [`provider`] | one request: its time limits, its bytes, its deltas |
//! | [`wire`] | the APIs: the request body, and the parser of the response |
//! | [`chat`], [`responses`], [`anthropic`] | the request of each API |
//! | [`chat_answer`], [`responses_answer`], [`anthropic_answer`] | the response, event by event |
//! | [`content`] | the content of items |
//! | [`draft`] | the answer in progress: items, deltas, usage |
//! | [`wrong`] | the errors of a response, and their failures |
//! | [`price`] | the cost of tokens |
//! | [`script`] | a model without a provider: turns from a file or a Lua function |
//!
//! Its input is a [`ModelRequest`](crate::protocol::ModelRequest), its output a
//! [`ModelReply`](crate::protocol::ModelReply). Refuses to retry: a failure says whether and when
//! another attempt may succeed, and the engine decides. Refuses to guess: a response that is cut
//! off, malformed or too long is a failure, and the arguments of a call are the provider's own
//! text.

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
