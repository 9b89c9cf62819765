//! The facts of a run: the entry, the fold of entries into a chain, the fingerprint.
//!
//! Owns the durable vocabulary and its binary form (version 4; versions 1 and 2 are still read). Refuses an
//! entry of a newer version, an entry whose checksum differs, and a fact that does not follow from
//! the chain. Pure: no clock, no IO. The engine appends, the store keeps bytes, the API shows
//! chains.

mod additions;
mod chain;
mod entry;
mod fingerprint;
mod key;
mod spent;
mod stored;
mod tally;

#[cfg(feature = "host")]
pub(crate) use additions::{ALLOWED, BRANCH, LINE};
pub use additions::{Additions, ReportMark, StepFile, StepFiles};
pub use chain::{Chain, ChainError, EarlierAttempt, RunState, SeatHolder, Step};
#[cfg(feature = "host")]
pub(crate) use chain::{SESSION, model_of, took_a_signal};
pub use entry::{
    AttemptClosed, AttemptOpened, Decision, Entry, Fact, Followed, Note, Outcome, RunStarted,
    Scheduled, SignalReceived,
};
pub use fingerprint::fingerprint;
#[cfg(feature = "host")]
pub(crate) use key::KeyHash;
pub use key::{ScopePath, StepKey};
pub use spent::{Spent, Usage};
pub use stored::{EntryError, OLDEST, VERSION};
pub use tally::{Dimension, Durations, Ending, HOUR_MS, Measure, OTHER, Tally, TallyKey};
