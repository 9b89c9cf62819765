//! The backends that execute tasks, one file per kind.
//!
//! Owns the [`Backend`] seam and the built-in operators. Refuses to know runs, journals and
//! retries: a backend gets one attempt of one task and replies once. The spawner calls it.

mod agent_cli;
mod assemble;
mod backend;
mod builtin;
mod composite;
mod declared;
mod echo;
#[cfg(test)]
pub(crate) mod fixture;
mod http;
mod human;
mod inquiry;
mod label_queue;
mod llm;
mod lua;
mod main_ai;
mod mcp;
mod outgoing;
mod plain;
mod process;
mod queue;
mod queue_hub;
mod registry;
mod task;
mod task_lease;
mod task_webhook;
mod usage;
mod worker_book;

pub use assemble::rehearsed;
pub use backend::{Backend, ModelSource, Reply, Residence, ToolServer};
pub use builtin::{Builtin, LuaCall};
pub use composite::{Composite, CompositeError, GraphError, MOST_DEPTH};
pub use declared::{Declared, Mistake, Settings, ShownSettings};
pub use echo::Echo;
pub use human::{HUMAN, Human, inquiry_of, says_no};
pub use inquiry::{GivenAnswer, Inquiry, names, names_starter};
pub use llm::{NO_TURN, ScriptedTurns};
pub use lua::{Lua, lua_calls};
pub use main_ai::{MAIN_AI, MainAi, PromptTransport, kind_of};
pub use plain::{HOST_KEY, Plain, Reading};
pub use process::{BundleDir, Process};
pub use queue::Queue;
pub use queue_hub::{
    Claim, Handed, QueueHub, QueuePoll, Received, TooManyPollers, WaitingLine, Wanted,
};
pub use registry::{Answered, Coded, Registry};

pub use crate::protocol::Ticket;
pub use task::{Delivery, Prompt, ReadPrompt, Reporter, Task, joined};
pub use task_lease::{DurableLease, LeaseReturn, TaskLease};
pub use task_webhook::{Posted, TaskWebhook};
pub use usage::read_usage;
pub use worker_book::{WorkerBook, WorkerSeen};
