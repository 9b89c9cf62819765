//! Functions that receive a task's deltas (`on_delta`).
//!
//! A flow keeps the function of each open task. The host calls it in a copy of the flow, never in
//! the flow itself: what it changes there the flow does not see, live as little as in a replay.

use super::{
    super::{
        desk::Mode,
        failure,
        raw::{Allowance, Armed, Delivery, Halt},
    },
    ScriptFlow,
};
use crate::{
    journal::{Note, StepKey},
    protocol::{Failure, Json, failure::kind},
};

impl ScriptFlow {
    /// Returns true if any open task has a listener.
    pub fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Returns true if a task has a listener.
    pub fn listens(&self, key: &StepKey) -> bool {
        self.listeners.contains_key(key)
    }

    /// The open tasks whose deltas are received.
    pub fn listened(&self) -> impl Iterator<Item = &StepKey> {
        self.listeners.keys()
    }

    /// Removes the listener of a task.
    pub fn forget_listener(&mut self, key: &StepKey) {
        self.listeners.remove(key);
    }

    /// Calls the listener of a task with a piece, and returns its notes.
    ///
    /// # Errors
    /// Fails when the listener raises an error or exceeds a limit.
    pub fn hear(&mut self, key: &StepKey, piece: &Json, now_ms: u64) -> Result<Vec<Note>, Failure> {
        let Some(function) = self.listeners.get(key) else { return Ok(Vec::new()) };
        let no_room = || failure::limit("the VM has no room for on_delta");
        if self.vm.condemned.get() {
            return Err(no_room());
        }
        let lane = std::sync::Arc::clone(&self.lane);
        let slice = lane.begin(self.limits.slice_ms);
        let armed = Armed::new(Allowance {
            category: self.category,
            memory: self.limits.memory,
            clock: slice.clock(),
        });
        let desk = &self.vm.desk;
        self.vm.let_grow(self.limits.memory);
        desk.open(Mode::Flow, now_ms, self.random, self.limits.value);
        let piece = self.vm.machine.decode(piece.as_str()).map_err(|_| no_room())?;
        let piece = piece.map_err(|problem| Failure::new(kind::SCRIPT, problem))?;
        let co = self.vm.machine.coroutine(self.category, function, piece);
        let Ok(co) = co else {
            desk.mode.set(Mode::Pure);
            return Err(no_room());
        };
        let halt = co.resume(&armed, Delivery::Nothing);
        self.random = desk.random.get();
        desk.mode.set(Mode::Pure);
        let notes = desk.notes.borrow_mut().drain(..).collect();
        if let Some(breach) = armed.breach() {
            return Err(failure::breach(breach, &armed, &self.limits));
        }
        if desk.flooded.get() {
            return Err(failure::limit("on_delta said too much at once"));
        }
        match halt {
            Halt::Returned => Ok(notes),
            Halt::Raised => Err(co.raised()),
            Halt::Called => {
                let why = "on_delta can only say things: ctx:log, ctx:status, ctx:publish";
                Err(Failure::new(kind::SCRIPT, why))
            }
            Halt::OutOfMemory | Halt::Undelivered => Err(no_room()),
        }
    }
}
