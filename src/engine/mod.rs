//! The engine: shards that own runs, and the facade that everybody else talks to.
//!
//! Owns the one loop by which a run changes (load, advance, commit, perform), recovery, attempts,
//! timers, signals, cancel, and the views of all of it. Refuses HTTP, SQL and Lua: it speaks to
//! the store's traits, a flow and backends. The API and the host call [`Engine`].

mod accept;
mod answer;
mod attempt;
mod auth;
mod blueprints;
mod capacity;
mod decide;
mod drive;
mod error;
mod events;
mod facade;
mod message;
mod perform;
mod programs;
mod receive;
mod recover;
mod request;
mod run;
mod runs;
mod safe_mode;
mod shard;
mod shared;
mod signal;
mod state;
mod timers;
mod view;
mod waiting;
mod workers;

pub use error::{Breach, EngineError};
pub use events::Events;
pub use facade::{Engine, EngineParts, Recovery};
pub use request::{
    Answer, Bearer, Caller, Holder, IdempotencyKey, Leased, MintToken, Minted, Program, Report,
    StartRun, Started, Verdict, WaitFor,
};
pub use shared::Settings;
pub use view::{
    ArtifactView, BlueprintView, EventView, FailureView, HeartbeatView, LeaseView, Page,
    PromptView, RunView, StepView, TaskView, TokenView, WaitingOn, rfc3339,
};

#[cfg(test)]
mod tests;
