//! Who executes tasks: one file a kind.
//!
//! Owns the [`Backend`] seam and the built-in operators. Refuses to know runs, journals and
//! retries: a backend gets one attempt of one task and answers once. The spawner calls it.

mod backend;
mod task;

pub use backend::{Backend, Registry, Reply, Residence};
pub use task::{Delivery, Prompt, Reporter, Task};
