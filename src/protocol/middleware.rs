//! Middleware between callers and the three traits: around a dispatch, state and an environment.
//!
//! A middleware gets the request and `next`, the remaining stack; if it does not call `next`, its
//! own answer is final. The order of a stack is: observers, transformers, guards, and then the
//! wrapped object. These stacks are for code that uses the traits without a host; the host has its
//! own stacks, in the room `middleware`.

mod builder;
mod dispatch;
mod exec;
mod hooks;
mod store;

pub use dispatch::{DispatchMiddleware, DispatchNext, DispatchStack, DispatchStackBuilder};
pub use exec::{ExecMiddleware, ExecNext, ExecStack, ExecStackBuilder};
pub use hooks::{ByHook, DispatchHook, ExecHook, InAnyEnvironment, OperatorHook, StoreHook};
pub use store::{
    Layered, StoreAnswer, StoreMiddleware, StoreOtherNext, StoreQuestion, StoreReadNext,
    StoreStack, StoreStackBuilder, StoreWriteNext,
};

#[cfg(test)]
mod tests;
