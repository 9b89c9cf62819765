//! The lines of the log, which belong to the process and not to one host.
//!
//! A line costs a system call of its own, a good part of what a short run costs. A thread that writes
//! many can therefore gather those of some milliseconds and write them at once.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write as _},
    marker::PhantomData,
};

use super::{Counter, Scrape};

/// The size of the gathered lines from which on they are written, in bytes.
const GATHERED: usize = 32 << 10;

thread_local! {
    static GATHERS: Cell<bool> = const { Cell::new(false) };
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

static WARNINGS: Counter = Counter::new();
static ERRORS: Counter = Counter::new();

/// Counts a warning, or an error.
pub fn count(is_error: bool) {
    if is_error { &ERRORS } else { &WARNINGS }.inc();
}

/// Gathers the lines of this thread while it lives, and writes them when it is dropped. Not for longer
/// than some milliseconds: a process that is killed meanwhile loses these lines.
#[must_use]
pub struct Gathering(PhantomData<*const ()>);

/// Begins to gather the lines of this thread.
pub fn gather() -> Gathering {
    GATHERS.set(true);
    Gathering(PhantomData)
}

impl Drop for Gathering {
    fn drop(&mut self) {
        GATHERS.set(false);
        // Who reads the log may be gone, which stops nothing else.
        let _ = LINES.with_borrow_mut(written);
    }
}

/// Writes a line to stderr, or keeps it with those that are gathered.
///
/// # Errors
/// Fails when stderr cannot be written.
pub fn write(line: &[u8]) -> io::Result<()> {
    if !GATHERS.get() {
        return io::stderr().lock().write_all(line);
    }
    LINES.with_borrow_mut(|lines| {
        lines.extend_from_slice(line);
        if lines.len() < GATHERED { Ok(()) } else { written(lines) }
    })
}

fn written(lines: &mut Vec<u8>) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let result = io::stderr().lock().write_all(lines);
    lines.clear();
    lines.shrink_to(GATHERED);
    result
}

/// Adds the numbers to a reading.
pub fn collect(scrape: &mut Scrape) {
    scrape.count("moonswarm_log_lines_total", &["warn"], WARNINGS.get());
    scrape.count("moonswarm_log_lines_total", &["error"], ERRORS.get());
}
