//! Running the tests of blueprints: playing each test of a file on a stage, reporting.
//!
//! A test is Lua (`require("swarm.test")`). What it asks for is done here, on an engine of its own
//! in virtual time; what its agents answer is kept, so that a crash asks nobody twice. The command
//! line plays files of the disk. A host plays files that came with a request: within [`Bounds`], and
//! they can name no other files.

mod budget;
mod coverage;
mod files;
mod places;
mod play;
mod prepared;
mod report;
mod request;
mod snapshot;

use std::path::{Path, PathBuf};

use tracing::subscriber::NoSubscriber;

use crate::{
    blueprint::Bundle,
    clock::Clock,
    lua::{TestFile, TestName},
    operator::Registry,
    protocol::Failure,
};

pub use budget::Bounds;
pub use coverage::{Covered, Recorder, lcov, node_rows, rows as coverage_rows};
pub use files::{Posted, PostedError, is_test};
pub use places::{NoPlace, Places, RequestPlace};
pub use report::{junit, lines, summary};
pub use snapshot::Snapshots;

use budget::Budget;
use files::Files;
use play::Play;

/// The settings of a test run.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Only tests whose name has this in it.
    pub filter: Option<&'a str>,
    /// Each test again with a crash after every write to a journal.
    pub crash: bool,
    /// The handling of snapshots.
    pub snapshots: Snapshots,
    /// The recorder of lines that ran.
    pub coverage: Option<&'a Recorder>,
}

/// The result of a file of tests.
#[derive(Debug)]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// The reason why nothing of it could be run.
    pub broken: Option<Failure>,
    /// Its tests, in their order.
    pub tests: Vec<TestReport>,
}

/// The result of a test.
#[derive(Debug)]
pub struct TestReport {
    /// Its name.
    pub name: String,
    /// The line in its file.
    pub line: Option<u32>,
    /// The duration, in milliseconds of real time.
    pub took_ms: u64,
    /// The number of repetitions with a crash.
    pub crashes: usize,
    /// The failure.
    pub failed: Option<Failure>,
    /// The write after which the host had died when it failed.
    pub after_crash: Option<usize>,
    /// The printed lines, and the snapshots that it wrote.
    pub said: Vec<String>,
    /// Warnings about a test that passed.
    pub findings: Vec<String>,
}

/// Runs a file of tests.
pub fn run(path: &Path, known: &Registry, options: &Options<'_>, clock: &Clock) -> FileReport {
    let budget = Budget::unlimited();
    let mut runner =
        Runner { known, options, clock, budget: &budget, left: usize::MAX, skipped: 0 };
    runner.file(Files::Disk, path)
}

/// The result of the tests of a request.
#[derive(Debug)]
pub struct PostedReport {
    /// The files of tests, in the order of their names.
    pub files: Vec<FileReport>,
    /// The files of blueprints that ran, and what of them.
    pub covered: Vec<Covered>,
    /// The number of tests that did not run, since their number or the time has a limit.
    pub skipped: usize,
}

/// Runs the tests of a request, within bounds. Blocks. Reads and writes nothing outside of the
/// request.
pub fn run_posted(
    posted: &Posted,
    known: &Registry,
    (filter, crash): (Option<&str>, bool),
    bounds: Bounds,
    clock: &Clock,
) -> PostedReport {
    let recorder = Recorder::default();
    let options = Options { filter, crash, snapshots: Snapshots::Given, coverage: Some(&recorder) };
    let (left, mut room) = (bounds.tests, bounds.shown);
    let budget = Budget::new(bounds, clock);
    let mut runner = Runner { known, options: &options, clock, budget: &budget, left, skipped: 0 };
    let mut files = Vec::new();
    // What happens on a stage is nothing of the host: its log has nothing of it.
    tracing::subscriber::with_default(NoSubscriber::default(), || {
        for path in posted.tests() {
            let mut report = runner.file(Files::Posted(posted), Path::new(path));
            report.trim(&mut room);
            files.push(report);
        }
    });
    let skipped = runner.skipped;
    PostedReport { files, covered: recorder.take(), skipped }
}

/// Runs files of tests, one after the other.
struct Runner<'a> {
    known: &'a Registry,
    options: &'a Options<'a>,
    clock: &'a Clock,
    budget: &'a Budget,
    /// The number of tests that may still run.
    left: usize,
    skipped: usize,
}

impl Runner<'_> {
    fn file(&mut self, files: Files<'_>, path: &Path) -> FileReport {
        let mut report = FileReport { path: path.to_owned(), broken: None, tests: Vec::new() };
        // To read a file takes as long as a test may.
        self.budget.begin();
        let opened = files
            .bundle(path)
            .map_err(|failure| Failure::new("bundle", failure.message))
            .and_then(|bundle| {
                let file = TestFile::open(&bundle, &self.budget.of_script())?;
                Ok((file.names().to_vec(), bundle))
            });
        let (names, bundle) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                report.broken = Some(failure);
                return report;
            }
        };
        let Self { known, options, budget, .. } = *self;
        let one = One { files, path, bundle: &bundle, known, options, budget };
        for (place, name) in names.iter().enumerate() {
            if options.filter.is_some_and(|part| !name.name.contains(part)) {
                continue;
            }
            if self.left == 0 || !budget.begin() {
                self.skipped += 1;
                continue;
            }
            self.left -= 1;
            let began = self.clock.steady_ms();
            let mut test = one.run(place, name);
            test.took_ms = self.clock.steady_ms().saturating_sub(began);
            report.tests.push(test);
        }
        report
    }
}

/// The data that all tests of a file share.
struct One<'a> {
    files: Files<'a>,
    path: &'a Path,
    bundle: &'a Bundle,
    known: &'a Registry,
    options: &'a Options<'a>,
    budget: &'a Budget,
}

impl One<'_> {
    fn run(&self, place: usize, name: &TestName) -> TestReport {
        let mut report = TestReport {
            name: name.name.clone(),
            line: name.line,
            took_ms: 0,
            crashes: 0,
            failed: None,
            after_crash: None,
            said: Vec::new(),
            findings: Vec::new(),
        };
        let plain = self.play(place, None, self.options.snapshots);
        report.said = plain.said;
        report.findings = plain.findings;
        report.failed = plain.failed;
        if !self.options.crash || report.failed.is_some() {
            return report;
        }
        for (number, write) in plain.writes.into_iter().enumerate() {
            report.crashes += 1;
            let played = self.play(place, Some(write), self.options.snapshots.of_repetition());
            if played.failed.is_some() {
                report.failed = played.failed;
                // A limit that is reached then is reached by all repetitions together.
                report.after_crash = self.budget.failure().is_none().then_some(number + 1);
                return report;
            }
        }
        report
    }

    fn play(&self, place: usize, crash: Option<u64>, snapshots: Snapshots) -> play::Played {
        // What only a crash runs again is counted once.
        let recorder = self.options.coverage.filter(|_| crash.is_none());
        let coverage = recorder.map(Recorder::counter);
        // A test has a file of its own: nothing that one leaves behind is there for the next.
        let opened = TestFile::open(self.bundle, &self.budget.of_script());
        let played = opened.and_then(|file| {
            let files = (self.files, self.path);
            let play = Play::new(&file, files, self.known, self.budget, snapshots, coverage)?;
            play.run(place, crash)
        });
        match played {
            Ok(played) => {
                if let Some(recorder) = recorder {
                    recorder.note(&played.places);
                }
                played
            }
            Err(failure) => play::Played { failed: Some(failure), ..play::Played::default() },
        }
    }
}

#[cfg(test)]
mod tests;
