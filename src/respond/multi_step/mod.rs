//! A response of several steps, driven to its end over a chain of steps that is stored.
//!
//! Owns the two halves as traits, [`MultiStepStore`] (the chain, and what follows from it) and
//! [`ToolExecutor`] with [`Model`] (who executes a step), and [`run_response_loop`], which drives
//! the one with the other. [`Chains`] keeps the chains in any [`Store`](crate::store::Store) as runs
//! of their own; what follows from such a chain is what follows in an agent's own loop:
//! [`ResponseFlow`](crate::flow::response::ResponseFlow). Refuses to know wire formats.

mod assemble;
mod chains;
mod drive;
mod error;
mod events;
mod executor;
mod store;
mod transition;

pub use chains::{Chains, NewResponse};
pub use drive::{LoopConfig, ResponseLoop, run_response_loop};
pub use error::{ExecutorError, LoopError, StoreError, ToolError};
pub use events::{EventSink, LoopEvent, LoopEventKind, SinkError};
pub use executor::{Model, RequestContext, ToolExecutor, ToolKind, ToolSchema};
pub use store::MultiStepStore;
pub use transition::{ToolLoop, Transition};

#[cfg(test)]
mod tests;
