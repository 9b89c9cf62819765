//! A response of several steps, driven to its end over a chain of steps that is stored.
//!
//! Owns the two halves as traits, [`MultiStepStore`] (the chain, and what follows from it) and
//! [`ToolExecutor`] with [`Model`] (who executes a step), and [`run_response_loop`], which drives
//! the one with the other. [`ToolLoop`] is what follows from a chain in an agent's own loop:
//! [`ResponseFlow`](crate::flow::response::ResponseFlow). With the feature `host`, `Chains` keeps
//! chains in any store of this crate as runs of their own, and `LlmModel` asks the model of a
//! configured operator. Refuses to know wire formats.

#[cfg(feature = "host")]
mod assemble;
#[cfg(feature = "host")]
mod chains;
mod drive;
mod error;
mod events;
mod executor;
#[cfg(feature = "host")]
mod llm;
mod store;
mod transition;

#[cfg(feature = "host")]
pub use chains::{Chains, NewResponse};
pub use drive::{LoopConfig, ResponseLoop, run_response_loop};
pub use error::{ExecutorError, LoopError, StoreError, ToolError};
pub use events::{EventSink, LoopEvent, LoopEventKind, SinkError};
pub use executor::{Model, RequestContext, ToolExecutor, ToolKind, ToolSchema};
#[cfg(feature = "host")]
pub use llm::{LlmModel, NoModel};
pub use store::MultiStepStore;
pub use transition::{ToolLoop, Transition};

#[cfg(test)]
#[cfg(feature = "host")]
mod tests;
