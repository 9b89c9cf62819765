//! The handle of the engine, and the families of its verbs.

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
};

use tokio::sync::Semaphore;

use crate::{
    engine::shared::{
        looks::Looks, places::PlaceBook, proven::Proven, shards::Shared, verified::Auth,
    },
    lua::Watchdog,
};

/// The engine: cheap to clone; every method may be called from any task of its runtime.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Proven<Inner>>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) auth: Auth,
    pub(crate) booted: AtomicBool,
    /// Serializes long operations: copies and replays.
    pub(crate) heavy: Semaphore,
    /// The looks at locals.
    pub(crate) looks: Looks,
    /// The places of entries in the histories that were looked at.
    pub(crate) places: Arc<PlaceBook>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) threads: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

/// Declares the families: a type for each, and the method of the engine that returns it.
macro_rules! families {
    ($($(#[$doc:meta])+ $family:ident: $Verbs:ident;)+) => {
        $(
            $(#[$doc])+
            #[derive(Clone, Copy)]
            pub struct $Verbs<'e> {
                pub(crate) engine: &'e Engine,
            }
        )+

        impl Engine {
            $(
                $(#[$doc])+
                pub fn $family(&self) -> $Verbs<'_> {
                    $Verbs { engine: self }
                }
            )+
        }
    };
}

families! {
    /// Tokens of callers and of attempts, and the keys that sign them.
    tokens: TokenVerbs;
    /// Stored blueprints and their versions.
    blueprints: BlueprintVerbs;
    /// Schedules, and watches of files.
    triggers: TriggerVerbs;
    /// Responses, conversations and models.
    responses: ResponseVerbs;
    /// Open tasks: what people, pull workers and the holders of attempts do with them.
    tasks: TaskVerbs;
    /// Connected operators: their sessions, seats and frames.
    sessions: SessionVerbs;
    /// Single dispatches to operators, outside of a flow.
    dispatches: DispatchVerbs;
    /// Stored state, in every scope.
    stored_state: StateVerbs;
    /// Histories as documents and copies: export, import, fork and replay.
    histories: HistoryVerbs;
    /// Starts with care after crashes, and the quarantine.
    safe_mode: SafeModeVerbs;
    /// Runs that other nodes of a cluster drive for this one, and the reverse.
    lending: LendingVerbs;
    /// The spans of requests that this host answers, for the export of traces.
    spans: SpanVerbs;
    /// Backups, retention, and the audit log.
    upkeep: UpkeepVerbs;
}
