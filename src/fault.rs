//! Fault points for tests: kill points, and deliberate breaks.
//!
//! Owns the list of deliberate breaks and the count of kill points reached. Without the feature
//! `faults` everything here is empty and costs nothing; no release has it. Tests kill the program
//! at each kill point in turn, and use the breaks to show that they would detect them.

/// A guarantee that a test breaks deliberately, to show that the break is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// The epoch and the attempt of a result are not checked.
    SkipEpochCheck,
    /// A result that was already accepted is accepted again.
    DropDedup,
    /// Answers leave before the commit that they depend on.
    AckBeforeCommit,
    /// A boot loses the timers that were due.
    LoseTimerAtBoot,
    /// Effects are applied when the attempt is dispatched, not when its result is accepted.
    ApplyEffectsAtDispatch,
    /// A run that another node drives is woken here as well.
    WakeLentRuns,
    /// Batches of runs that are not lent any more are committed.
    CommitUnlentBatches,
    /// A run is taken back from another node before its batches are settled.
    TakeBackEarly,
}

impl Break {
    /// Every break.
    pub const ALL: [Self; 8] = [
        Self::SkipEpochCheck,
        Self::DropDedup,
        Self::AckBeforeCommit,
        Self::LoseTimerAtBoot,
        Self::ApplyEffectsAtDispatch,
        Self::WakeLentRuns,
        Self::CommitUnlentBatches,
        Self::TakeBackEarly,
    ];
}

#[cfg(not(feature = "faults"))]
mod off {
    use super::Break;

    /// Does nothing without the feature `faults`.
    #[inline(always)]
    pub fn point(_name: &str) {}

    /// Returns false.
    #[inline(always)]
    pub const fn is_broken(_what: Break) -> bool {
        false
    }

    /// Returns `None`.
    #[inline(always)]
    pub const fn next_release() -> Option<bool> {
        None
    }
}

#[cfg(feature = "faults")]
mod on {
    use std::{cell::Cell, collections::HashMap, io::Write as _, sync::OnceLock};

    use parking_lot::Mutex;

    use super::Break;

    thread_local! {
        static BROKEN: Cell<Option<Break>> = const { Cell::new(None) };
    }

    /// The point at which the process kills itself.
    enum At {
        /// The n-th point that is reached, counted from 1; never at 0.
        Point(u64),
        /// The n-th time that the point of this name is reached.
        Name(String, u64),
    }

    impl At {
        fn read(text: &str) -> Option<Self> {
            match text.split_once('#') {
                None => text.parse().ok().map(Self::Point),
                Some((name, n)) => n.parse().ok().map(|n| Self::Name(name.to_owned(), n)),
            }
        }
    }

    /// Marks a kill point. The process kills itself with SIGKILL at the point that
    /// `MOONSWARM_KILL_AT` gives: `7` is the seventh point that is reached, `engine.dispatch#2` the
    /// second of that name. Each point is logged on a line of the file that `MOONSWARM_KILL_LOG`
    /// names.
    pub fn point(name: &str) {
        static AT: OnceLock<Option<At>> = OnceLock::new();
        static REACHED: Mutex<(u64, Option<HashMap<String, u64>>)> = Mutex::new((0, None));
        let at = AT.get_or_init(|| At::read(&std::env::var("MOONSWARM_KILL_AT").ok()?));
        let Some(at) = at else { return };
        // Held until the end: the points are numbered in the order in which they are logged.
        let mut reached = REACHED.lock();
        reached.0 += 1;
        let n = reached.0;
        let of_name = reached.1.get_or_insert_default().entry(name.to_owned()).or_default();
        *of_name += 1;
        if let Ok(log) = std::env::var("MOONSWARM_KILL_LOG")
            && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(log)
        {
            // The test that reads the log notices a line that could not be written.
            let _ = writeln!(file, "{n} {name}");
        }
        let dies = match at {
            At::Point(at) => *at == n,
            At::Name(of, at) => of == name && at == of_name,
        };
        if dies {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            loop {
                std::thread::park();
            }
        }
    }

    /// Returns true if this thread breaks `what`.
    pub fn is_broken(what: Break) -> bool {
        BROKEN.get() == Some(what)
    }

    /// Returns `Some` if this process stands for the next release, by `MOONSWARM_NEXT_RELEASE`: with `true`
    /// (`breaks`) for one whose format the present release cannot work on.
    pub fn next_release() -> Option<bool> {
        static NEXT: OnceLock<Option<bool>> = OnceLock::new();
        *NEXT.get_or_init(|| Some(std::env::var("MOONSWARM_NEXT_RELEASE").ok()? == "breaks"))
    }

    /// Sets what this thread breaks from now on; `None` for nothing.
    pub fn set(what: Option<Break>) {
        BROKEN.set(what);
    }
}

#[cfg(not(feature = "faults"))]
pub use off::*;
#[cfg(feature = "faults")]
pub use on::*;
