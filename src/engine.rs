//! The engine: shards that own runs, and the facade that everybody else talks to.
//!
//! Owns the one loop by which a run changes (load, advance, commit, perform), recovery, attempts,
//! timers, signals, cancel, and the views of all of it. Refuses HTTP, SQL and Lua: it speaks to
//! the store's traits, a flow and backends. The API and the host call [`Engine`].
//!
//! | room | holds |
//! |---|---|
//! | `run` | a run in memory, as data; it uses nothing of the engine but errors and views |
//! | `view` | what is shown: the shapes of the API |
//! | `shared` | what all shards share, and the messages between them |
//! | `turn` | one transition of a run: steps, attempts, composites, loops, state, endings |
//! | `inbox` | the requests to a run: of workers, of people, of callers that control it |
//! | `shard` | who owns runs: load, advance, commit, perform |
//! | `verbs` | what the API, the command line and embedders call, in families: `engine.tasks()` |

mod error;
mod gate;
mod inbox;
mod run;
mod settings;
mod shard;
mod shared;
mod turn;
mod verbs;
mod view;

pub use error::{Breach, Checked, EngineError, Exceeded};
pub use run::loan::HomeReason;
pub use run::readers::PageMemory;
pub use run::reply::WaitFor;
pub use settings::{CustomEffects, Retention, Settings};
pub use shared::host_facts::{ConfigItem, DoctorLine, DoctorVerdict, HostFacts, NodeView};
pub use shared::key_files::{KeyFiles, Unkept};
pub use shared::lent::{FromHelper, Lend, Patience, ToHelper};
pub use shared::line_counts::{LineAct, LineActs, LineSteps, Lines};
pub use shared::programs::BlueprintProblem;
pub use shared::request::{
    Advice, Answer, Bearer, Caller, Carrier, Holder, IdempotencyKey, Leased, Made, MintToken,
    Minted, Program, Report, StartRun, Started, TokenGrant, Verdict,
};
pub use shared::server_spans::ServerSpan;
pub use shared::stacks::Middleware;
pub(crate) use shared::turns::Turn;
pub use turn::retell::{AskedView, Divergence};
pub use verbs::answer_links::{AnswerLink, LINK_MS, OpenLink};
pub use verbs::blueprint_versions::{BlueprintDiff, GraphView, VersionView};
pub use verbs::blueprints::BlueprintView;
pub use verbs::bulk::{Bulk, BulkAct, BulkItem, BulkRuns, BulkView, MOST_RUNS};
pub use verbs::conversations::StoredConversation;
pub use verbs::engine::{
    BlueprintVerbs, DispatchVerbs, Engine, HistoryVerbs, LendingVerbs, ResponseVerbs,
    SafeModeVerbs, SessionVerbs, SpanVerbs, StateVerbs, TaskVerbs, TokenVerbs, TriggerVerbs,
    UpkeepVerbs,
};
pub use verbs::erase_view::{CopyView, Erase, EraseView, Erased, ErasedRun, Stays};
pub use verbs::events::Events;
pub use verbs::facade::{EngineParts, Recovery};
pub use verbs::fork::{Fork, ForkAsk, ForkFate, ForkPlan, ForkStep};
pub use verbs::host::{ChainView, DiskView, HostView, RetentionView};
pub use verbs::host_events::{HostEvent, HostEvents, HostEventsAsk, Since};
pub use verbs::inbox::{AnsweredView, Sought};
pub use verbs::journal_feed::{AgentFacts, JournalFeed, OperatorFacts, VersionFacts};
pub use verbs::keys::{RotateKeys, Rotated};
pub use verbs::leases::LeaseAsk;
pub use verbs::lending::LendingLink;
pub use verbs::listing::{AuditView, LayerState, LayerView};
pub use verbs::moves::Moves;
pub use verbs::orchestrate::{DispatchInput, DispatchView, HostOperator, Orchestration};
pub use verbs::parts::{StepBounds, StepPart, StepParts, WholeStep};
pub use verbs::queues::{LineView, QueueView, WorkerView};
pub use verbs::replay::ReplayView;
pub use verbs::rerun::RerunVersion;
pub use verbs::respond::{ModelView, Responding};
pub use verbs::retention::{GcView, Gone, Sweeper, Why};
pub use verbs::run_diff::{RunDiff, StepDiff};
pub(crate) use verbs::run_dirs::{INCARNATION, claim_work};
pub use verbs::run_list::RunList;
pub use verbs::schedules::{Schedules, TriggerView};
pub use verbs::session_work::{Polled, SpawnPage, TasksAsk};
pub use verbs::sessions::{OpenSession, Opened, SessionView};
pub(crate) use verbs::sign_in::SignInRecord;
pub use verbs::stage::{Job, Stage, StageLimits};
pub use verbs::state_scopes::{ScopeView, TreeItem};
pub use verbs::stats::{StatsAsk, StatsBy, StatsItem, StatsView};
pub use verbs::stored_state::{ChangedView, HostState, MOST_CHANGES, StateView};
pub use verbs::transfer::{DOCUMENT_BYTES, Export};
pub use verbs::triggers::TriggerEntry;
pub use verbs::watches::{FileMark, Files, Watched};
pub use view::attempts::{AttemptView, AttemptsView, DecisionView, RefusedView};
pub use view::context::{ContextArtifact, ContextStep, ContextView};
pub use view::host_events::HostEventView;
pub use view::locals::{
    FlowForm, LocalsBranch, LocalsFrame, LocalsRole, LocalsVariable, LocalsView,
};
pub use view::runs::{ChildView, CopiedView, LimitView, RunView, SeatView, UndeliveredView};
pub(crate) use view::shell;
pub use view::shown::{
    AnswerView, ArtifactRef, ArtifactView, EventView, FailureView, HeartbeatView, LeaseView, Page,
    PromptView, QuotaUse, SpawnView, StateItem, TaskView, TokenView, rfc3339,
};
pub use view::spent::SpentView;
pub use view::steps::{AttemptSpan, StepView};
pub(crate) use view::tasks::take_from;
pub use view::waits::{SessionWait, Subject, WaitingOn};

#[cfg(test)]
mod tests;
