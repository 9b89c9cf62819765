//! Multi-step responses, driven to their end over a stored chain of steps.
//!
//! Owns the interfaces [`MultiStepStore`] (stores the chain and returns its next action),
//! [`ToolExecutor`] and [`Model`] (execute steps), and [`run_response_loop`], which drives them.
//! [`Chains`] implements the store on any [`Store`](crate::store::Store), with a run per response
//! and the next actions of an agent's own loop:
//! [`ResponseFlow`](crate::flow::response::ResponseFlow). Knows no wire formats.

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
