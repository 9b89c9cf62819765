//! What every dispatch of the host passes through on its way to an operator.
//!
//! Owns the [`DispatchStack`] and the built-in layers. Refuses to know what executes a task: the
//! terminal is the caller's, and its payload is opaque here. The engine runs one stack for every
//! dispatch; the host builds it.
//!
//! ```text
//! observers → transformers → guards → terminal
//! ```
//!
//! Within a class the order is that of registration. An observer watches and cannot change or stop
//! anything; a transformer may change the dispatch, answer itself or fail; a guard refuses.

mod dispatch;
mod gate;
mod observe;
mod sizes;
mod stack;
mod trace;

pub use dispatch::{Dispatch, Dispatched, TaskDone, Terminal};
pub use gate::{Gate, Permits};
pub use observe::{DispatchObserver, Watched};
pub use sizes::Sizes;
pub use stack::{DispatchLayer, DispatchStack, Next, StackBuilder};
pub use trace::Tracing;
