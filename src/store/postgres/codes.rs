//! The numbers that stand for the words of closed vocabularies. A number is never given to another
//! word.

use crate::{
    journal::{Dimension, Ending},
    store::{Grain, RunStatus, TaskPhase},
};

/// The number of `completed`. The condition of the index `runs_status` has it verbatim.
pub const COMPLETED: i16 = 5;

/// Returns the number of a status.
pub fn status(status: RunStatus) -> i16 {
    match status {
        RunStatus::Queued => 0,
        RunStatus::Running => 1,
        RunStatus::Waiting => 2,
        RunStatus::Paused => 3,
        RunStatus::Compensating => 4,
        RunStatus::Completed => COMPLETED,
        RunStatus::Failed => 6,
        RunStatus::Canceled => 7,
    }
}

/// Returns the status with a number.
pub fn status_of(code: i64) -> Option<RunStatus> {
    RunStatus::ALL.into_iter().find(|it| i64::from(status(*it)) == code)
}

/// Returns the number of a phase.
pub fn phase(phase: TaskPhase) -> i16 {
    match phase {
        TaskPhase::Pending => 0,
        TaskPhase::Delivered => 1,
    }
}

/// Returns the phase with a number.
pub fn phase_of(code: i64) -> Option<TaskPhase> {
    [TaskPhase::Pending, TaskPhase::Delivered].into_iter().find(|it| i64::from(phase(*it)) == code)
}

/// The number of a signal in the outbox.
pub const SIGNAL: i16 = 0;
/// The number of a cancel in the outbox.
pub const CANCEL: i16 = 1;
/// The number of a change in the outbox.
pub const CHANGE: i16 = 2;

/// Returns the number of a grain.
pub fn grain(grain: Grain) -> i16 {
    match grain {
        Grain::Hour => 0,
        Grain::Day => 1,
    }
}

/// Returns the number of a dimension.
pub fn dimension(of: Dimension) -> i16 {
    match of {
        Dimension::Blueprint => 0,
        Dimension::Agent => 1,
        Dimension::Model => 2,
    }
}

/// Returns the number of an ending.
pub fn ending(ending: Ending) -> i16 {
    match ending {
        Ending::Open => 0,
        Ending::Completed => 1,
        Ending::Failed => 2,
        Ending::Canceled => 3,
    }
}

/// Returns the ending with a number.
pub fn ending_of(code: i64) -> Option<Ending> {
    [Ending::Open, Ending::Completed, Ending::Failed, Ending::Canceled]
        .into_iter()
        .find(|it| i64::from(ending(*it)) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_from_its_number() {
        for it in RunStatus::ALL {
            assert_eq!(status_of(status(it).into()), Some(it));
        }
        for it in [TaskPhase::Pending, TaskPhase::Delivered] {
            assert_eq!(phase_of(phase(it).into()), Some(it));
        }
        assert_eq!((status_of(8), phase_of(-1), ending_of(4)), (None, None, None));
    }
}
