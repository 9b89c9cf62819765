//! Multi-step responses, driven to their end over a stored chain of steps.
//!
//! Owns the interfaces [`MultiStepStore`] (stores the chain and returns its next action),
//! [`ToolExecutor`] and [`Model`] (execute steps), and [`run_response_loop`], which drives them.
//! [`ToolLoop`] returns the next actions of an agent's own loop:
//! [`ResponseFlow`](crate::flow::response::ResponseFlow). With the feature `host`, `Chains`
//! implements the store on any store of this crate, with a run per response, and `LlmModel` calls
//! the model of a configured operator. Knows no wire formats.

mod arguments;
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
pub(in crate::respond) use assemble::code_of;
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
