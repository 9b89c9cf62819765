//! What passes on its way to an operator, to state and to a program, and what stands in between.
//!
//! Owns the stacks of the three boundaries and the built-in layers. Refuses to know what executes a
//! task, where state is or how a program is started: the terminal is the caller's, and a dispatch's
//! payload is opaque here. The engine runs the stacks; the host and blueprints say what is in them.
//!
//! ```text
//! observers → transformers → guards → terminal
//! ```
//!
//! Within a class the order is that of registration. An observer watches and cannot change or stop
//! anything; a transformer may change what passes, answer itself or fail; a guard refuses, or
//! answers in the terminal's place. What came of work that was parked goes the same way back, from
//! the inside out, when it is settled.

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
mod protocol_layer;
mod sizes;
mod stack;
mod store;
mod trace;

pub use audit_line::{Chained, GENESIS, Line, Tampered};
pub use boundary::{Boundary, Class};
pub use contract::{ANSWER, answer_of, message_of, taken, usage_of, value_of};
pub use declared::{
    KINDS, Layer, LayerError, Listed, MOST, Settings, Stacks, TracingSettings, tell_apart, unknown,
};
pub use dispatch::{About, Dispatch, Dispatched, Mute, Short, TaskDone, Terminal, Voice};
pub use exec::{
    ExecCall, ExecLayer, ExecNext, ExecObserver, ExecStack, ExecStackBuilder, ExecTerminal,
};
pub use keep::{Change, Keep, MemoryKeep};
pub use layers::{
    Audit, AuditSettings, BreakerSettings, Budget, BudgetSettings, Cache, CacheSettings,
    CircuitBreaker, Guard, GuardSettings, Idempotency, IdempotencySettings, Means, RateLimit,
    RateSettings, Redact, RedactSettings, Span,
};
pub use protocol_layer::ProtocolLayer;
pub use sizes::Sizes;
pub use stack::{
    DispatchLayer, DispatchObserver, DispatchStack, Next, Settled, StackBuilder, Watched,
};
pub use store::{
    StoreCall, StoreLayer, StoreNext, StoreObserver, StoreOp, StoreStack, StoreStackBuilder, Stored,
};
pub use trace::Tracing;
