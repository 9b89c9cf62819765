//! Steps whose parts are steps of their own: composites and model loops.
//!
//! A driver decides what follows from the ends of its parts, and changes only itself. The turn
//! carries out its commands.

use crate::{
    engine::run::members::Event,
    flow::{StateOp, TaskRequest, response::LoopStop},
    journal::{Outcome, Scheduled, StepKey, Usage},
    protocol::{Failure, Json, LifecycleEvent},
};

/// A command of a driver.
pub(crate) enum Command {
    /// Begin the part at a place.
    Begin(usize),
    /// Send an event to layers and watchers.
    Tell(LifecycleEvent),
    /// End with a value.
    Complete(Json),
    /// End with a failure.
    Stop(Box<LoopStop>),
}

/// The way in which a part is executed.
pub(crate) enum Work {
    /// As a task.
    Task,
    /// As an operation on state; the run's own if the scope is absent.
    State {
        /// The scope.
        scope: Option<String>,
        /// The operation.
        op: StateOp,
    },
    /// Not at all: it fails as it begins.
    Refused(Failure),
}

/// An open step whose parts are steps of their own.
pub(crate) trait Driver {
    /// Returns the next commands; none while it waits for its parts.
    fn advance(&mut self) -> Vec<Command>;

    /// Marks the part at a place as begun, and returns its request and its work.
    fn begin(&mut self, place: usize) -> Option<(TaskRequest, Work)>;

    /// Takes the operators and tools that a part, which has ended, left allowed; any if absent.
    fn narrow(&mut self, part: &StepKey, allowed: Option<Vec<String>>);

    /// Records the end of a part, with the usage of it and everything below it.
    fn ended(&mut self, part: &StepKey, outcome: Outcome, used: &Usage);

    /// Returns the request and the work of a part that has a step.
    fn part(&self, step: &Scheduled) -> Option<(TaskRequest, Work)>;

    /// Replays the events of its parts.
    fn replay(&mut self, events: &[Event]);

    /// Returns the key of the part at a place, given its own.
    fn key_of(&self, own: &StepKey, place: usize) -> StepKey;

    /// Returns the agent whose task it is.
    fn agent(&self) -> &str;

    /// Returns the reason for which parts that are still open are canceled at its end.
    fn farewell(&self, completed: bool) -> &'static str;
}

/// Returns a place as it stands in a key.
pub(crate) fn in_key(place: usize) -> u32 {
    u32::try_from(place).expect("steps of a run are bounded")
}
