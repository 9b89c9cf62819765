//! The engine: shards that own runs, and the facade that everybody else talks to.
//!
//! Owns the one loop by which a run changes (load, advance, commit, perform), recovery, attempts,
//! timers, signals, cancel, and the views of all of it. Refuses HTTP, SQL and Lua: it speaks to
//! the store's traits, a flow and backends. The API and the host call [`Engine`].

mod error;
mod inbox;
mod run;
mod shard;
mod shared;
mod turn;
mod verbs;
mod view;

pub use error::{Breach, EngineError};
pub use run::readers::Held;
pub use shard::retell::{AskedView, Divergence};
pub use shared::accounts::{Exceeded, QuotaUse};
pub use shared::request::{
    Answer, Bearer, Caller, Holder, IdempotencyKey, Leased, Made, MintToken, Minted, Program,
    Report, StartRun, Started, Verdict, WaitFor,
};
pub use shared::shards::Settings;
pub use shared::stacks::Middleware;
pub use turn::budget::SpentView;
pub use turn::effects::CustomEffects;
pub use verbs::blueprints::BlueprintView;
pub use verbs::events::Events;
pub use verbs::facade::{Engine, EngineParts, Recovery};
pub use verbs::fork::Fork;
pub use verbs::keys::{KeyFiles, RotateKeys, Rotated, Unkept};
pub use verbs::listing::{AuditView, LayerView};
pub use verbs::orchestrate::{DispatchView, Orchestration};
pub use verbs::replay::ReplayView;
pub use verbs::respond::{ModelView, Responding};
pub use verbs::retention::{GcView, Gone, Retention, Sweeper, Why};
pub use verbs::schedules::{Schedules, TriggerView};
pub use verbs::sessions::{OpenSession, Opened, SessionView};
pub use verbs::stage::{Job, Stage};
pub use verbs::stored_state::{ChangedView, HostState, MOST_CHANGES, StateItem, StateView};
pub use verbs::transfer::Export;
pub use verbs::watches::{FileMark, Files, Watched};
pub use verbs::workers::LeaseAsk;
pub use view::shown::{
    AnswerView, ArtifactView, CopiedView, EventView, FailureView, HeartbeatView, LeaseView, Page,
    PromptView, RunView, SeatView, SpawnView, StepView, TaskView, TokenView, WaitingOn, rfc3339,
};

#[cfg(test)]
mod tests;
