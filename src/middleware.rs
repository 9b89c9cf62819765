//! The layers between a run and its operators, its state and its programs.
//!
//! Owns the stacks of the three boundaries and the built-in layers. Refuses to know how a task is
//! executed, where state is stored or how a program is started: the terminal belongs to the caller,
//! and the payload of a dispatch is opaque here. The engine runs the stacks; the host and
//! blueprints declare their layers.
//!
//! ```text
//! observers → transformers → guards → terminal
//! ```
//!
//! Within a class the order is that of registration. An observer cannot change or stop anything; a
//! transformer may change the request, answer itself or fail; a guard refuses, or answers in place
//! of the terminal. The outcome of parked work goes back the same way, from the inside out, when it
//! is settled.

mod audit_line;
mod boundary;
mod contract;
mod declared;
mod dispatch;
mod exec;
#[cfg(test)]
pub(crate) mod fixture;
mod keep;
mod layers;
mod promise;
mod protocol_exec;
mod protocol_layer;
mod protocol_store;
mod sizes;
mod stack;
mod store;
mod trace;

pub use audit_line::{AuditLine, Chained, GENESIS, Tampered};
pub use boundary::{Boundary, Class};
pub use contract::{
    ANSWER, SKIP, answer_of, kept_answer, message_of, skips, taken, usage_of, value_of,
};
pub use declared::{
    KINDS, Layer, LayerError, Listed, MOST, Settings, Stacks, TracingSettings, tell_apart, unknown,
};
pub(crate) use dispatch::Storable;
pub use dispatch::{About, Dispatch, Dispatched, Mute, Short, TaskDone, Terminal, Voice};
pub use exec::{
    ExecCall, ExecLayer, ExecNext, ExecObserver, ExecStack, ExecStackBuilder, ExecTerminal,
    PROGRAMS,
};
pub use keep::{Change, Keep, MemoryKeep};
pub use layers::{
    Audit, AuditSettings, BreakerSettings, Budget, BudgetSettings, Cache, CacheSettings,
    CircuitBreaker, Guard, GuardSettings, Idempotency, IdempotencySettings, Means, Per, RateLimit,
    RateSettings, Redact, RedactSettings, Span,
};
pub(crate) use promise::Promise;
pub use protocol_exec::ProtocolExec;
pub use protocol_layer::ProtocolLayer;
pub use protocol_store::ProtocolStore;
pub use sizes::Sizes;
pub use stack::{
    DispatchLayer, DispatchObserver, DispatchStack, Next, Settled, StackBuilder, Watched,
};
pub use store::{
    StoreCall, StoreLayer, StoreNext, StoreObserver, StoreOp, StoreStack, StoreStackBuilder, Stored,
};
pub use trace::Tracing;
