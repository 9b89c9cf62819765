//! The pure core: a flow takes an input and says what comes next.
//!
//! Owns the transition function's shape ([`Flow::advance`]), the requests that a flow can make
//! ([`StepOp`]), how several operators stand for one ([`Rule`]), a model's tool loop ([`response`])
//! and the limits of a run. Refuses clocks, IO and randomness: time and ids come in with the input. `lua/` has the flow that is a script, the engine drives both.

mod composite;
mod limits;
mod op;
pub mod response;
mod state_op;

pub use composite::{BadPath, Course, Rule, Turn, ValuePath};
pub use limits::RunLimits;
pub use op::{ArtifactOp, Asking, Backoff, Part, StepOp, StepRequest, TaskOpts, TaskRequest};
pub use state_op::{SetOpts, StateOp};

use crate::{
    journal::{Note, ScopePath, StepKey},
    protocol::{Failure, Json},
};

/// What happens to a flow.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// It begins.
    Start,
    /// A step that it asked for ended with a value.
    Completed {
        /// Which step.
        key: StepKey,
        /// The value.
        output: Json,
    },
    /// A step that it asked for ended with a failure, a cancel included.
    Failed {
        /// Which step.
        key: StepKey,
        /// The failure.
        failure: Failure,
    },
    /// Nothing new: it goes on with the input before, which it had not taken to its end
    /// ([`NextAction::More`]).
    More,
    /// The run failed or was canceled: drop every branch and run the deferred functions,
    /// latest first, in the scope [`compensation_scope`].
    Compensate,
}

/// One thing that a flow asks for while it advances, in the order in which it asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Start a step; its end comes back as an [`Input`].
    Schedule(StepRequest),
    /// Give up every open step in this scope and the scopes within it. Nothing comes back.
    CancelScope(ScopePath),
    /// Say something. Nothing comes back; it takes an index of its scope like a step.
    Note {
        /// Where.
        key: StepKey,
        /// What.
        note: Note,
    },
}

/// Where a flow stands after an advance.
#[derive(Debug, Clone, PartialEq)]
pub enum NextAction {
    /// It asked for steps (one is serial, many are a fan-out), or still waits for earlier ones.
    Wait,
    /// It has taken its turn and not come to the end of the input: others may have theirs, then it
    /// wants [`Input::More`] before any other input but [`Input::Compensate`].
    More,
    /// It is done, with this value.
    Complete(Json),
    /// It failed.
    Fail(Failure),
    /// It starts over with this input, in a fresh history of the same run.
    ContinueAs(Json),
    /// A limit was broken (CPU, memory, size). Live, the run fails; replaying, it pauses.
    Limit(Failure),
    /// The flow could not take the input through no fault of its own (the VM had no room): drop
    /// it, and replay.
    Broken(String),
}

/// The answer of [`Flow::advance`].
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// What it asked for, in order.
    pub commands: Vec<Command>,
    /// Where it stands.
    pub next: NextAction,
}

/// A run's program: a pure function of the inputs that it was given, in their order.
pub trait Flow {
    /// Takes one input at the time `now_ms` (Unix milliseconds, the time of the entry that the
    /// input comes from) and runs until nothing can go on without another, or for one turn.
    ///
    /// Where turns end changes nothing of what it asks for, and in which order.
    ///
    /// An input for a step that the flow no longer awaits is ignored.
    fn advance(&mut self, input: Input, now_ms: u64) -> Advance;

    /// Whether it has deferred functions to run when it fails or is canceled.
    fn has_defers(&self) -> bool;

    /// Answers a query by a function that the flow registered. It changes nothing.
    ///
    /// # Errors
    /// When there is no such query, or its function fails.
    fn query(&mut self, name: &str, argument: &Json) -> Result<Json, Failure>;
}

/// The scope that deferred functions run in.
pub fn compensation_scope() -> ScopePath {
    ScopePath::main().branch(u32::MAX, 0)
}
