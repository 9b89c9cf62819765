//! The limits of what one run makes the host hold.

use crate::protocol::Code;
use crate::{
    engine::{EngineError, run::resident::Run, turn::facts::Turn},
    memory::Level,
};

/// Lets a run that was read hold what it holds already.
pub(crate) fn keep_weight(run: &mut Run) {
    let held = run.held().total();
    run.account.keep(held);
}

/// Returns the reason why a run may not hold so much more, if there is one.
pub(crate) fn too_heavy(run: &Run, more: usize) -> Option<String> {
    let is_over = more > 0 && run.held().total().saturating_add(more) > run.account.most;
    is_over.then(|| over(run, more))
}

/// Returns the reason why the own state of a run may not grow by so much, if there is one.
pub(crate) fn too_much_state(run: &Run, more: usize) -> Option<String> {
    let is_over = more > 0 && run.held().state.saturating_add(more) > run.account.most_state;
    too_heavy(run, more).or_else(|| is_over.then(|| over(run, more)))
}

fn over(run: &Run, more: usize) -> String {
    let held = run.held();
    format!(
        "it would hold {} bytes in memory, {} are allowed; most of it is {}",
        held.total().saturating_add(more),
        run.account.most,
        held.most()
    )
}

/// Refuses what a caller would make a run hold, where that is too much.
pub(crate) fn check_weight(run: &Run, what: &str, more: usize) -> Result<(), EngineError> {
    match too_heavy(run, more) {
        Some(why) => Err(run_full(format!("accept {what} of {more} bytes: {why}"))),
        None => Ok(()),
    }
}

/// Refuses a file of a worker while too much of the run is on its way, or stored.
pub(crate) fn check_file(turn: &Turn<'_>, bytes: usize) -> Result<(), EngineError> {
    let limits = &turn.shared.settings.limits;
    let writing = turn.run.writing();
    if writing > 0 && writing.saturating_add(bytes) > limits.held {
        let message = format!(
            "accept a file of {bytes} bytes: {writing} bytes of run {} are on their way to the disk",
            turn.run.id
        );
        return Err(run_full(message));
    }
    if turn.run.header.bytes.saturating_add(bytes as u64) > limits.stored {
        let message = format!(
            "accept a file of {bytes} bytes: run {} stores {} bytes, {} are allowed",
            turn.run.id, turn.run.header.bytes, limits.stored
        );
        return Err(run_full(message));
    }
    Ok(())
}

/// Returns true if a run's flow waits until the host has room; it is to be woken then. One run at a
/// time goes on without.
pub(crate) fn parks(turn: &mut Turn<'_>) -> bool {
    let memory = &turn.shared.memory;
    let is_full = memory.level() == Level::Full;
    if !is_full {
        turn.run.account.pass = None;
    } else if turn.run.account.pass.is_none() {
        turn.run.account.pass = memory.pass(turn.run.num);
    }
    let parks = is_full && turn.run.account.pass.is_none();
    if parks != turn.run.account.parked {
        turn.run.account.parked = parks;
        turn.run.restate = true;
    }
    if parks {
        turn.shared.make_room();
    }
    parks
}

/// Gives the right to go on without room back, once a run has nothing to do.
pub(crate) fn rest_weight(run: &mut Run) {
    if run.inbox.is_empty() {
        run.account.pass = None;
        run.restate |= std::mem::take(&mut run.account.parked);
    }
}

/// The refusal for what would make a run hold more than it may.
pub(crate) fn run_full(message: String) -> EngineError {
    EngineError::Busy { code: Code::RunFull, message, retry_after_s: 5 }
}
