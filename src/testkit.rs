//! Running the tests of blueprints: playing each test of a file on a stage, reporting.
//!
//! A test is Lua (`require("swarm.test")`). What it asks for is done here, on an engine of its own
//! in virtual time; what its agents answer is kept, so that a crash asks nobody twice.

mod coverage;
mod play;
mod prepared;
mod report;
mod request;
mod snapshot;

use std::path::{Path, PathBuf};

use crate::{
    blueprint::Bundle,
    clock::Clock,
    lua::{Limits, TestFile, TestName},
    operator::Registry,
    protocol::Failure,
};

pub use coverage::{Covered, Recorder, lcov, node_rows, rows as coverage_rows};
pub use report::{junit, lines, summary};
pub use snapshot::Snapshots;

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
    let mut report = FileReport { path: path.to_owned(), broken: None, tests: Vec::new() };
    let bundle = match Bundle::load(path) {
        Ok(bundle) => bundle,
        Err(error) => {
            report.broken = Some(Failure::new("bundle", error.to_string()));
            return report;
        }
    };
    let names = match TestFile::open(&bundle, &Limits::default()) {
        Ok(file) => file.names().to_vec(),
        Err(failure) => {
            report.broken = Some(failure);
            return report;
        }
    };
    let one = One { path, bundle: &bundle, known, options };
    for (place, name) in names.iter().enumerate() {
        if options.filter.is_none_or(|part| name.name.contains(part)) {
            let began = clock.now_ms();
            let mut test = one.run(place, name);
            test.took_ms = clock.now_ms().saturating_sub(began);
            report.tests.push(test);
        }
    }
    report
}

/// The data that all tests of a file share.
struct One<'a> {
    path: &'a Path,
    bundle: &'a Bundle,
    known: &'a Registry,
    options: &'a Options<'a>,
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
            let played = self.play(place, Some(write), Snapshots::Compare);
            if played.failed.is_some() {
                report.failed = played.failed;
                report.after_crash = Some(number + 1);
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
        let opened = TestFile::open(self.bundle, &Limits::default());
        let played = opened.and_then(|file| {
            Play::new(&file, self.path, self.known, snapshots, coverage)?.run(place, crash)
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
