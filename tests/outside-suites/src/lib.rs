//! The modules of the crate `onwards` as its tests of the response loop import them, on this crate's
//! loop. What differs is the call alone: a model is a trait here, and the parts are one struct.

pub mod client;
pub mod response_loop;
pub mod streaming;

/// The traits and the data of a chain.
pub mod traits {
    pub use moonswarm::{
        protocol::{ChainStep, NextAction, RecordedStep, StepDescriptor, StepKind, StepState},
        respond::multi_step::{
            ExecutorError, MultiStepStore, RequestContext, StoreError, ToolError, ToolExecutor,
            ToolKind, ToolSchema,
        },
    };
}
