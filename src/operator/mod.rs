//! Who executes tasks: one file a kind.
//!
//! Owns the [`Backend`] seam and the built-in operators. Refuses to know runs, journals and
//! retries: a backend gets one attempt of one task and answers once. The spawner calls it.

mod backend;
mod builtin;
mod echo;
#[cfg(test)]
mod fixture;
mod human;
mod lua;
mod process;
mod queue;
mod queue_hub;
mod task;

pub use backend::{Backend, Registry, Reply, Residence};
pub use builtin::Builtin;
pub use echo::Echo;
pub use human::Human;
pub use lua::{Lua, LuaCall, lua_calls};
pub use process::{BundleDir, Process};
pub use queue::{Queue, queue_of};
pub use queue_hub::{QueueHub, Ticket, TooManyPollers};
pub use task::{Delivery, Prompt, Reporter, Task};
