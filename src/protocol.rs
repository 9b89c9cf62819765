//! The public vocabulary: plain data and object-safe traits.
//!
//! Owns the ids, content, effects, failures, the [`Operator`] trait and the terms of a multi-step
//! chain. Refuses tokio, IO, Lua and SQL. Every other room uses it.

mod code;
pub mod content;
pub mod context;
pub mod duration;
pub mod effect;
pub mod environment;
pub mod error;
pub mod failure;
pub mod fold;
pub mod id;
mod json;
pub mod lifecycle;
pub mod middleware;
pub mod model;
pub mod operator;
pub mod orchestrator;
pub mod plain;
mod run_id;
mod scope;
pub mod secret;
pub mod sse;
pub mod state;
pub mod step;
mod tags;
#[cfg(any(test, feature = "test-utils", feature = "faults"))]
pub mod test_utils;
#[cfg(feature = "host")]
pub(crate) mod text;
mod ticket;
mod trace;

pub use code::Code;
pub use content::{Content, ContentBlock, ImageSource};
pub use context::{
    Context, ContextError, ContextMessage, ContextSnapshot, ContextWatcher, Message, MessageMeta,
    OperatorContext, Position, Role, WatcherVerdict,
};
pub use duration::DurationMs;
pub use effect::{Effect, LogLevel, SignalPayload};
pub use environment::{
    CredentialInjection, CredentialRef, Environment, EnvironmentSpec, IsolationBoundary,
    NetworkAction, NetworkPolicy, NetworkRule, ResourceLimits,
};
pub use error::{EnvError, OperatorError, OrchError, StateError};
pub use failure::Failure;
pub use id::{OperatorId, ScopeId, SessionId, WorkflowId};
pub use json::Json;
pub use lifecycle::{
    BudgetDecision, BudgetEvent, CompactionEvent, CompactionPolicy, EventSource, LifecycleEvent,
    ObservableEvent,
};
pub use model::{
    FunctionTool, ModelAnswer, ModelAsk, ModelDelta, ModelEnd, ModelReply, ModelRequest, ModelStop,
    TextLane,
};
pub use operator::{
    ExitReason, Operator, OperatorConfig, OperatorInput, OperatorMetadata, OperatorOutput,
    SubDispatchRecord, ToolMetadata, TriggerType,
};
pub use orchestrator::{Orchestrator, QueryPayload};
pub use run_id::{ArtifactId, IdError, RunId, TaskId, WorkerId};
pub use scope::{Scope, ScopeTextError};
pub use secret::{SecretAccessEvent, SecretAccessOutcome, SecretSource};
pub use state::{
    ChangeKey, ContentKind, Lifetime, MemoryLink, MemoryTier, SearchOptions, SearchResult,
    StateReader, StateStore, StoreOptions,
};
pub use step::{ChainStep, NextAction, RecordedStep, StepDescriptor, StepKind, StepState};
pub use tags::{TagError, TagIs, Tags};
pub use ticket::Ticket;
pub use trace::{Sampling, TraceParent};
