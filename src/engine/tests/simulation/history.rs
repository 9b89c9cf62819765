//! The requests, the answers, and the position of the store at each.

use std::fmt;

/// Something that a client or a worker asks for. Bodies are told apart by a number of their own.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    Start {
        body: u32,
        key: Option<u32>,
        token: usize,
        peer: Option<u64>,
    },
    Cancel {
        run: u64,
        body: u32,
        token: usize,
    },
    Pause {
        run: u64,
        body: u32,
        token: usize,
    },
    Resume {
        run: u64,
        token: usize,
    },
    Signal {
        run: u64,
        body: u32,
        key: Option<u32>,
        token: usize,
    },
    Answer {
        run: u64,
        step: u32,
        scheduled_ms: u64,
        body: u32,
        rejects: bool,
        token: usize,
    },
    Revoke {
        token: usize,
    },
    Lease {
        queue: &'static str,
        worker: u32,
        max: usize,
        wait_ms: u64,
    },
    /// The lease that comes with a report.
    Next {
        queue: &'static str,
        worker: u32,
        max: usize,
        wait_ms: u64,
    },
    Prompt(Of),
    Beat(Of),
    Report {
        of: Of,
        body: u32,
        says: Says,
    },
    State {
        of: Of,
        body: u32,
    },
    File {
        of: Of,
        body: u32,
    },
    Wait {
        run: u64,
    },
}

/// The attempt that a worker speaks of, and the token that it comes with instead of a handle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Of {
    pub run: u64,
    pub step: u32,
    pub attempt: u32,
    pub token: Option<usize>,
}

/// The outcome that a worker reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Says {
    Done,
    Garbage,
    Failed { retryable: bool },
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    Started { run: u64, repeated: bool },
    Done,
    Leased(Vec<(u64, u32, u32)>),
    Accepted(bool),
    Beat { cancel: bool },
}

/// Something that happened in the world.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Asked(u32, Ask),
    Told(u32, Told),
    Refused(u32, String),
    /// The asker went away, or the host died: nobody knows.
    Lost(u32),
    Crashed,
    Storage(&'static str),
    /// An in-host worker ended its attempt; the body is what it returned.
    Worked {
        run: u64,
        step: u32,
        attempt: u32,
        body: u32,
        says: Says,
    },
    /// Everything was handled that could be without time going on.
    Quiet,
}

/// An event, its time, and the commit before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub at_ms: u64,
    pub position: u64,
    pub what: What,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14} #{:<4} {:?}", self.at_ms, self.position, self.what)
    }
}
