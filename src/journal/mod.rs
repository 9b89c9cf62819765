//! What happened in a run, as facts: the entry, the fold of entries into a chain, the fingerprint.
//!
//! Owns the durable vocabulary and its binary form (envelope version 1). Refuses an entry of a
//! newer version and a fact that does not follow from the chain. Pure: no clock, no IO. The engine
//! appends, the store keeps bytes, the API shows chains.

mod chain;
mod entry;
mod fingerprint;
mod key;
mod spent;

pub use chain::{Chain, ChainError, Held, RunState, Step};
pub use entry::{
    AttemptClosed, AttemptOpened, Decision, Entry, EntryError, Fact, Followed, Note, Outcome,
    RunStarted, Scheduled, SignalReceived, Usage, VERSION,
};
pub use fingerprint::fingerprint;
pub use key::{ScopePath, StepKey};
pub use spent::Spent;
