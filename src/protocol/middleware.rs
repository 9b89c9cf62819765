//! What stands between callers and the three traits: around a dispatch, around state, around an
//! environment.
//!
//! A middleware gets what passes and the rest of the way, `next`; without a call of `next` its own
//! answer is final. Stacks put them in order: observers, transformers, guards, and then whoever is
//! wrapped. These stacks are for code that uses the traits without a host; a host has stacks of its
//! own, in the room `middleware`.

mod builder;
mod dispatch;
mod exec;
mod hooks;
mod store;

pub use dispatch::{DispatchMiddleware, DispatchNext, DispatchStack, DispatchStackBuilder};
pub use exec::{ExecMiddleware, ExecNext, ExecStack, ExecStackBuilder};
pub use hooks::{ByHook, DispatchHook, ExecHook, StoreHook};
pub use store::{
    Layered, StoreAnswer, StoreMiddleware, StoreOtherNext, StoreQuestion, StoreReadNext,
    StoreStack, StoreStackBuilder, StoreWriteNext,
};

#[cfg(test)]
mod tests;
