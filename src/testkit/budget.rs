//! The limits of tests that a host plays for others: time, memory, and what they write and print.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::Clock,
    engine::StageLimits,
    lua::{TaskLimits, TestLimits},
    protocol::{Failure, failure::kind},
};

/// Memory of one run's script, in bytes.
const SCRIPT: usize = 32 << 20;
/// Memory of a call of an agent's function, and of the script of a test, in bytes.
const CALL: usize = 64 << 20;
/// Memory of everything that the engine of a test holds, in bytes.
const ENGINE: usize = 96 << 20;
/// Size of the entries of one history, in bytes.
const HISTORY: u64 = 16 << 20;
/// The bytes that the runs of a test write.
const WRITTEN: u64 = 48 << 20;
/// The bytes of the requests of a test and of their answers.
const EXCHANGED: usize = 32 << 20;
/// The bytes that a test prints.
const PRINTED: usize = 16 << 10;
/// The largest request of a test, in bytes of JSON.
const VALUE: usize = 4 << 20;

/// The limits of tests that somebody else wrote.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The time of one test, with its repetitions, in milliseconds.
    pub test_ms: u64,
    /// The time of all of them, in milliseconds.
    pub all_ms: u64,
    /// The number of tests.
    pub tests: usize,
    /// The bytes of names, failures, warnings and printed lines in the result.
    pub shown: usize,
    /// Set by whoever wants the tests to end.
    pub stop: Arc<AtomicBool>,
}

/// The limit that a test has reached.
#[derive(Debug, Clone, Copy)]
enum Over {
    Stopped,
    Test,
    All,
    Written,
    Exchanged,
}

/// The remainder of the bounds; a clone shares it.
#[derive(Clone)]
pub(super) struct Budget(Option<Rc<Spent>>);

struct Spent {
    bounds: Bounds,
    clock: Clock,
    /// The time at which all tests end.
    end_ms: u64,
    /// The time at which the current test ends.
    test_end_ms: Cell<u64>,
    exchanged: Cell<usize>,
    over: Cell<Option<Over>>,
}

impl Budget {
    /// Returns a budget without bounds.
    pub(super) fn unlimited() -> Self {
        Self(None)
    }

    /// Returns a budget whose time begins now.
    pub(super) fn new(bounds: Bounds, clock: &Clock) -> Self {
        let end_ms = clock.steady_ms().saturating_add(bounds.all_ms);
        Self(Some(Rc::new(Spent {
            bounds,
            clock: clock.clone(),
            end_ms,
            test_end_ms: Cell::new(end_ms),
            exchanged: Cell::new(0),
            over: Cell::new(None),
        })))
    }

    /// Begins a test: its time, and what it exchanges. Returns false if there is no time for one.
    pub(super) fn begin(&self) -> bool {
        let Some(spent) = &self.0 else { return true };
        let now = spent.clock.steady_ms();
        spent.test_end_ms.set(now.saturating_add(spent.bounds.test_ms).min(spent.end_ms));
        spent.exchanged.set(0);
        spent.over.set(None);
        now < spent.end_ms && !spent.bounds.stop.load(Ordering::Relaxed)
    }

    /// Counts a request or an answer.
    pub(super) fn exchange(&self, bytes: usize) {
        let Some(spent) = &self.0 else { return };
        let sum = spent.exchanged.get().saturating_add(bytes);
        spent.exchanged.set(sum);
        if sum > EXCHANGED {
            spent.over.set(Some(Over::Exchanged));
        }
    }

    /// Returns the failure of a test that has reached a limit.
    pub(super) fn failure(&self) -> Option<Failure> {
        let spent = self.0.as_ref()?;
        spent.is_over(0);
        let bounds = &spent.bounds;
        let message = match spent.over.get()? {
            Over::Stopped => {
                return Some(Failure::new(kind::CANCELED, "the host ended the tests"));
            }
            Over::Test => format!("the test took longer than {} ms", bounds.test_ms),
            Over::All => format!("the tests took longer than {} ms together", bounds.all_ms),
            Over::Written => {
                format!("the runs of the test wrote more than {} MiB", WRITTEN >> 20)
            }
            Over::Exchanged => {
                format!("the test asked for more than {} MiB, with the answers", EXCHANGED >> 20)
            }
        };
        Some(Failure::new(kind::LIMIT, message))
    }

    /// Returns the allowance of the script of a test.
    pub(super) fn of_script(&self) -> TestLimits {
        let Some(spent) = &self.0 else { return TestLimits::default() };
        let left = Rc::clone(spent);
        TestLimits {
            slice: Duration::from_millis((spent.bounds.test_ms / 2).max(1)),
            memory: CALL,
            value: VALUE,
            printed: PRINTED,
            left: Some(Rc::new(move || Duration::from_millis(left.left_ms()))),
            stop: Arc::clone(&spent.bounds.stop),
        }
    }

    /// Returns the limits of the stage of a test.
    pub(super) fn of_stage(&self) -> StageLimits {
        let Some(spent) = &self.0 else { return StageLimits::default() };
        // What stays in a flow or an agent fails with its line, before the time of the test is over.
        let slice_ms = (spent.left_ms() / 2).max(1);
        let spent = Rc::clone(spent);
        StageLimits {
            slice_ms,
            memory: ENGINE,
            script: SCRIPT,
            history: HISTORY,
            calls: TaskLimits { cpu_ms: slice_ms, memory: CALL, ..TaskLimits::default() },
            is_over: Some(Box::new(move |written| spent.is_over(written))),
        }
    }
}

impl Spent {
    /// The time that is left for the test, in milliseconds.
    fn left_ms(&self) -> u64 {
        self.test_end_ms.get().saturating_sub(self.clock.steady_ms())
    }

    /// Looks at the limits; the first one that was reached stays the reason.
    fn is_over(&self, written: u64) -> bool {
        if self.over.get().is_none() {
            let now = self.clock.steady_ms();
            self.over.set(match () {
                () if self.bounds.stop.load(Ordering::Relaxed) => Some(Over::Stopped),
                () if now >= self.end_ms => Some(Over::All),
                () if now >= self.test_end_ms.get() => Some(Over::Test),
                () if written > WRITTEN => Some(Over::Written),
                () => None,
            });
        }
        self.over.get().is_some()
    }
}
