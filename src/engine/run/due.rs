//! The timers of a run, indexed by time and by step.

use std::collections::BTreeSet;

/// The kinds of timers. The order of the variants is the order at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A timer step.
    Timer,
    /// The end of a wait for a signal.
    SignalDeadline,
    /// An attempt's timeout.
    Attempt,
    /// A queue worker's lease.
    Lease,
    /// The end of the time for a worker to take the task.
    Park,
    /// The next attempt.
    Retry,
    /// The retry of a child run that could not be stored.
    Child,
    /// The retry of a change of shared state that could not be written.
    State,
    /// The run's `wall` limit.
    Wall,
    /// The time limit of compensations.
    Compensation,
    /// A reminder of a task for people.
    Reminder,
    /// The time limit of a model's loop.
    Loop,
    /// The warning before the time limit of a model's loop.
    LoopNear,
    /// The end of a loop's wait for those before it in its conversation.
    Conversation,
}

impl Due {
    /// Returns true if this is a duration, measured with the steady clock; the others are times of
    /// day, due when the wall clock shows them.
    pub(crate) fn is_measured(self) -> bool {
        match self {
            // The history has these times.
            Self::Timer | Self::SignalDeadline | Self::Retry | Self::Reminder => false,
            Self::Attempt
            | Self::Lease
            | Self::Park
            | Self::Child
            | Self::State
            | Self::Wall
            | Self::Compensation
            | Self::Loop
            | Self::LoopNear
            | Self::Conversation => true,
        }
    }
}

/// A time on each of the two clocks, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times<T> {
    pub(crate) wall: T,
    pub(crate) steady: T,
}

/// Timers of one clock, ordered by time.
type ByTime = BTreeSet<(u64, u32, Due)>;

/// The timers of a run; step 0 stands for the run as a whole.
///
/// A run may have thousands of open steps, each with its own timers: no query here visits those of
/// other steps.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    wall: ByTime,
    steady: ByTime,
    by_step: BTreeSet<(u32, Due, u64)>,
}

impl Timers {
    fn by_time(&mut self, due: Due) -> &mut ByTime {
        if due.is_measured() { &mut self.steady } else { &mut self.wall }
    }

    /// Adds a timer, on the clock of its kind.
    pub(crate) fn insert(&mut self, (at, step, due): (u64, u32, Due)) {
        self.by_time(due).insert((at, step, due));
        self.by_step.insert((step, due, at));
    }

    /// Returns the time of the first timer, on each of the clocks.
    pub(crate) fn first(&self) -> Times<Option<u64>> {
        let at = |times: &ByTime| times.first().map(|(at, _, _)| *at);
        Times { wall: at(&self.wall), steady: at(&self.steady) }
    }

    /// Removes the timer that has been due for longest, if any is due.
    pub(crate) fn pop(&mut self, now: Times<u64>) -> Option<(u64, u32, Due)> {
        let due = |times: &ByTime, now: u64| times.first().copied().filter(|(at, ..)| *at <= now);
        let (wall, steady) = (due(&self.wall, now.wall), due(&self.steady, now.steady));
        let first = match (wall, steady) {
            (Some(wall), Some(steady)) if now.wall - wall.0 >= now.steady - steady.0 => wall,
            (Some(wall), None) => wall,
            (_, Some(steady)) => steady,
            (None, None) => return None,
        };
        let (at, step, due) = first;
        self.by_time(due).remove(&first);
        self.by_step.remove(&(step, due, at));
        Some(first)
    }

    /// Returns the time of a timer of a step.
    pub(crate) fn of(&self, step: u32, due: Due) -> Option<u64> {
        self.by_step.range((step, due, 0)..=(step, due, u64::MAX)).next().map(|(_, _, at)| *at)
    }

    /// Removes a timer of a step.
    pub(crate) fn remove(&mut self, step: u32, due: Due) {
        while let Some(at) = self.of(step, due) {
            self.by_time(due).remove(&(at, step, due));
            self.by_step.remove(&(step, due, at));
        }
    }

    /// Removes every timer of a step.
    pub(crate) fn remove_step(&mut self, step: u32) {
        let first = (step, Due::Timer, 0);
        while let Some(&(of, due, at)) =
            self.by_step.range(first..).next().filter(|(of, _, _)| *of == step)
        {
            self.by_time(due).remove(&(at, of, due));
            self.by_step.remove(&(of, due, at));
        }
    }

    /// Removes every timer except those of one kind.
    pub(crate) fn keep(&mut self, sort: Due) {
        self.wall.retain(|(_, _, due)| *due == sort);
        self.steady.retain(|(_, _, due)| *due == sort);
        self.by_step.retain(|(_, due, _)| *due == sort);
    }

    /// Removes every timer.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if there are no timers.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_step.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Timers {
        let mut timers = Timers::default();
        for it in
            [(30, 2, Due::Park), (10, 1, Due::Attempt), (20, 2, Due::Lease), (5, 0, Due::Wall)]
        {
            timers.insert(it);
        }
        timers
    }

    fn at(ms: u64) -> Times<u64> {
        Times { wall: ms, steady: ms }
    }

    #[test]
    fn setting_the_wall_clock_makes_times_of_day_due_and_ends_nothing_that_is_measured() {
        let mut timers = some();
        timers.insert((1_000, 3, Due::Timer));
        assert_eq!(timers.pop(Times { wall: 2_000, steady: 4 }), Some((1_000, 3, Due::Timer)));
        assert_eq!(timers.pop(Times { wall: 2_000, steady: 4 }), None);
        timers.insert((1_000, 3, Due::Timer));
        assert_eq!(timers.pop(Times { wall: 0, steady: 5 }), Some((5, 0, Due::Wall)));
    }

    #[test]
    fn what_is_due_comes_in_the_order_of_time_and_nothing_comes_early() {
        let mut timers = some();
        assert_eq!(timers.pop(at(4)), None);
        let all: Vec<_> = std::iter::from_fn(|| timers.pop(at(20))).collect();
        assert_eq!(all, [(5, 0, Due::Wall), (10, 1, Due::Attempt), (20, 2, Due::Lease)]);
        assert_eq!(timers.first(), Times { wall: None, steady: Some(30) });
    }

    #[test]
    fn a_step_that_ends_takes_its_own_times_and_no_others_with_it() {
        let mut timers = some();
        timers.remove_step(2);
        assert_eq!(timers.of(2, Due::Park), None);
        assert_eq!(timers.of(2, Due::Lease), None);
        assert_eq!(timers.of(1, Due::Attempt), Some(10));
        timers.remove(1, Due::Attempt);
        assert_eq!(timers.pop(at(100)), Some((5, 0, Due::Wall)));
        assert!(timers.is_empty());
    }

    #[test]
    fn one_sort_can_be_kept() {
        let mut timers = some();
        timers.keep(Due::Wall);
        assert_eq!(timers.of(2, Due::Lease), None);
        assert_eq!(timers.pop(at(100)), Some((5, 0, Due::Wall)));
        assert_eq!(timers.pop(at(100)), None);
    }
}
