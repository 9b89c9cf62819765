//! Replies of a run about itself.

use crate::{
    engine::{
        EngineError,
        run::{branches, resident::Run},
        view,
    },
    journal::{Outcome, RunState},
    protocol::{Code, RunId},
    store::{Errand, OutboxRow, RunStatus, Write},
};

/// Returns the refusal of a request after the end of a run.
pub(crate) fn closed(run: &Run) -> EngineError {
    EngineError::Conflict {
        code: Code::RunClosed,
        message: format!("change {}: the run has ended", run.id),
    }
}

/// Refuses a request after the end of a run.
pub(crate) fn refuse_ended(run: &Run) -> Result<(), EngineError> {
    if run.is_ended() { Err(closed(run)) } else { Ok(()) }
}

/// Returns the view of a run.
pub(crate) fn view_of(run: &Run) -> crate::engine::RunView {
    let mut view = view::run(&run.header);
    view.input = run.chain.started().map(|(started, _)| started.input.clone());
    view.delegate = branches::delegate(run).map(str::to_owned);
    view.seats = view::seats(run.chain.seats());
    view.usage = crate::engine::view::spent::view(run.chain.spent());
    if run.ends_on_its_way() {
        // Another batch is before it: an end that is not durable must not be visible.
        view.status = RunStatus::Running;
        view.ended_at = None;
        view.error = None;
    } else if let RunState::Ended(Outcome::Completed(output)) = run.chain.state() {
        view.output = Some(output.clone());
    }
    view
}

/// Returns the write that keeps a cancel of a child run until it is delivered: nobody else would
/// ever cancel that run.
pub(crate) fn cancel_on_its_way(run: &Run, step: u32, child: RunId, reason: &str) -> Write {
    let errand = Errand::Cancel { by: run.id.to_string(), reason: reason.to_owned() };
    Write::PutOutbox(OutboxRow { run: run.num, step, to: child.num(), errand })
}
