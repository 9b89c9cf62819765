//! The engine: shards that own runs, and the facade that everybody else talks to.
//!
//! Owns the one loop by which a run changes (load, advance, commit, perform), recovery, attempts,
//! timers, signals, cancel, and the views of all of it. Refuses HTTP, SQL and Lua: it speaks to
//! the store's traits, a flow and backends. The API and the host call [`Engine`].

mod accept;
mod account;
mod accounts;
mod answer;
mod attempt;
mod auth;
mod authority;
mod backup;
mod begin;
mod blueprints;
mod boundary;
mod budget;
mod capacity;
mod commit;
mod composite;
mod copy;
mod decide;
mod delta;
mod document;
mod drive;
mod due;
mod effects;
mod ending;
mod error;
mod escalate;
mod events;
mod facade;
mod files;
mod follow;
mod fork;
mod inbox;
mod keys;
mod layers;
mod ledger;
mod limits;
mod lineage;
mod listing;
mod mailbox;
mod message;
mod model_loop;
mod open;
mod orchestrate;
mod passage;
mod pause;
mod perform;
mod programs;
mod quarantine;
mod readers;
mod receive;
mod recover;
mod replay;
mod request;
mod respond;
mod retell;
mod retention;
mod run;
mod runs;
mod safe_mode;
mod schedules;
mod scoped;
mod seats;
mod session_keeper;
mod session_work;
mod sessions;
mod shard;
mod shared;
mod signal;
mod stacks;
mod stage;
mod state;
mod step_page;
mod stored_state;
mod timers;
mod transfer;
mod view;
mod waiting;
mod watches;
mod worker_state;
mod workers;

pub use accounts::{Exceeded, QuotaUse};
pub use blueprints::BlueprintView;
pub use budget::SpentView;
pub use effects::CustomEffects;
pub use error::{Breach, EngineError};
pub use events::Events;
pub use facade::{Engine, EngineParts, Recovery};
pub use fork::Fork;
pub use keys::{KeyFiles, RotateKeys, Rotated, Unkept};
pub use listing::{AuditView, LayerView};
pub use orchestrate::{DispatchView, Orchestration};
pub use readers::Held;
pub use replay::ReplayView;
pub use request::{
    Answer, Bearer, Caller, Holder, IdempotencyKey, Leased, Made, MintToken, Minted, Program,
    Report, StartRun, Started, Verdict, WaitFor,
};
pub use respond::{ModelView, Responding};
pub use retell::{AskedView, Divergence};
pub use retention::{GcView, Gone, Retention, Sweeper, Why};
pub use schedules::{Schedules, TriggerView};
pub use sessions::{OpenSession, Opened, SessionView};
pub use shared::Settings;
pub use stacks::Middleware;
pub use stage::{Job, Stage};
pub use stored_state::{ChangedView, HostState, MOST_CHANGES, StateItem, StateView};
pub use transfer::Export;
pub use view::{
    AnswerView, ArtifactView, CopiedView, EventView, FailureView, HeartbeatView, LeaseView, Page,
    PromptView, RunView, SeatView, SpawnView, StepView, TaskView, TokenView, WaitingOn, rfc3339,
};
pub use watches::{FileMark, Files, Watched};
pub use workers::LeaseAsk;

#[cfg(test)]
mod tests;
