//! The pure core: a flow takes an input and returns the next action.
//!
//! Owns the inputs of a flow and its results ([`Input`], [`Advance`]), the requests that it can make
//! ([`StepOp`]), composite operators ([`Rule`]), a model's tool loop ([`response`]) and the limits
//! of a run. Has no clock, no IO and no randomness: time and ids come in with the input. `lua/` has
//! the flow that runs a script. The engine drives it.

mod composite;
mod limits;
mod op;
pub mod response;
mod state_op;

pub use composite::{BadPath, CompositeAction, Course, Rule, ValuePath};
pub use limits::RunLimits;
pub use op::{
    ArtifactOp, Asking, Backoff, KeyOwner, LoopPart, STARTER, StepOp, StepRequest, TaskOpts,
    TaskRequest,
};
pub use state_op::{SetOpts, StateOp};

use crate::{
    journal::{Note, ScopePath, StepKey},
    protocol::{Failure, Json},
};

/// An event for a flow.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The flow starts.
    Start,
    /// A requested step ended with a value.
    Completed {
        /// The step.
        key: StepKey,
        /// The value.
        output: Json,
    },
    /// A requested step ended with a failure or a cancel.
    Failed {
        /// The step.
        key: StepKey,
        /// The failure.
        failure: Failure,
    },
    /// No new event: the flow continues with the previous input, which it had not finished
    /// ([`NextAction::More`]).
    More,
    /// The run failed or was canceled: the flow drops all branches and runs the deferred functions,
    /// the latest first, in the scope [`compensation_scope`].
    Compensate,
}

/// A request of a flow. Requests keep the order in which they were made.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Starts a step. Its end comes back as an [`Input`].
    Schedule(StepRequest),
    /// Cancels every open step in this scope and in nested scopes. There is no reply.
    CancelScope(ScopePath),
    /// Records a note. There is no reply. It takes an index of its scope like a step.
    Note {
        /// The position in the flow.
        key: StepKey,
        /// The note.
        note: Note,
    },
}

/// The state of a flow after an advance.
#[derive(Debug, Clone, PartialEq)]
pub enum NextAction {
    /// The flow waits for steps that it requested now or earlier.
    Wait,
    /// Its turn ended before the input was finished. After other runs had their turns, it expects
    /// [`Input::More`] or [`Input::Compensate`], and no other input.
    More,
    /// The flow completed with this value.
    Complete(Json),
    /// The flow failed.
    Fail(Failure),
    /// The flow continues with this input in a new history of the same run.
    ContinueAs(Json),
    /// The flow exceeded a limit (CPU, memory, size). A live run fails; a replay pauses.
    Limit(Failure),
    /// The flow could not process the input through no fault of its own (the VM was out of memory).
    /// Drop it, and replay.
    Broken(String),
}

/// The result of advancing a flow by one input.
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// The requests, in order.
    pub commands: Vec<Command>,
    /// The state of the flow.
    pub next: NextAction,
}

/// Returns the scope of deferred functions.
pub fn compensation_scope() -> ScopePath {
    ScopePath::main().branch(u32::MAX, 0)
}
