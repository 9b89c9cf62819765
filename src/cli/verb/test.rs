//! `test`: the tests of blueprints.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{
        changes::Changes,
        compile,
        context::Context,
        exit::{Exit, Stop},
        render::fitted,
        test_files::{directories, files},
    },
    testkit::{self, Covered, FileReport, Options, Recorder, Snapshots},
};

/// Run the tests of blueprints: files that end in _test.lua
#[derive(Debug, Args)]
pub struct Test {
    /// Files or directories
    #[arg(default_value = ".")]
    paths: Vec<PathBuf>,
    /// Run only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Repeat each test with a crash after every write to the journal
    #[arg(long)]
    crash: bool,
    /// Update the snapshots
    #[arg(long)]
    update: bool,
    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Report which lines of the blueprints, and which nodes of table flows, ran
    #[arg(long)]
    coverage: bool,
    /// Write the coverage as an lcov trace file
    #[arg(long, value_name = "FILE")]
    lcov: Option<PathBuf>,
    /// Run the tests again whenever a file changes
    #[arg(long)]
    watch: bool,
}

impl Test {
    /// Runs the command.
    ///
    /// # Errors
    /// A path that is not there, no test at all, a report that cannot be written.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        if !self.watch {
            return self.once(cx);
        }
        let mut changes = Changes::watch(&directories(&self.paths))?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            self.once(cx)?;
            cx.terminal.say("waiting for a change; Ctrl-C ends it");
            tokio::select! {
                changed = changes.next() => if !changed { return Ok(Exit::Ok) },
                _ = interrupt.recv() => return Ok(Exit::Ok),
            }
        }
    }

    fn once(&self, cx: &Context) -> Result<Exit> {
        let files = files(&self.paths)?;
        if files.is_empty() {
            let stop = Stop::new(Exit::NotFound, "there are no tests here");
            return Err(stop
                .next("tests are files that end in _test.lua; `moonswarm init` writes a blueprint with one")
                .into());
        }
        let snapshots = match (self.update, std::env::var_os("CI").is_some()) {
            (true, _) => Snapshots::Update,
            (false, true) => Snapshots::Compare,
            (false, false) => Snapshots::WriteNew,
        };
        let recorder = (self.coverage || self.lcov.is_some()).then(Recorder::default);
        let options = Options {
            filter: self.filter.as_deref(),
            crash: self.crash,
            snapshots,
            coverage: recorder.as_ref(),
        };
        let mut reports = Vec::new();
        for file in &files {
            let known = compile::known(&cx.beside.config_of(file)?);
            let report = testkit::run(file, &known, &options, &cx.clock);
            if !cx.terminal.json {
                for line in testkit::lines(&report) {
                    cx.terminal.print(&line)?;
                }
            }
            reports.push(report);
        }
        let (summary, passed) = testkit::summary(&reports);
        let covered = recorder.map(|recorder| recorder.take());
        let json: Vec<_> = reports.iter().map(as_json).collect();
        match &covered {
            Some(covered) if cx.terminal.json => {
                let coverage: Vec<_> = covered.iter().map(covered_json).collect();
                cx.terminal.print_json(&json!({ "files": json, "coverage": coverage }))?;
            }
            None if cx.terminal.json => cx.terminal.print_json(&json)?,
            Some(covered) if self.coverage => {
                let (lines, nodes) = (testkit::coverage_rows(covered), testkit::node_rows(covered));
                for (what, rows) in [("lines", lines), ("nodes", nodes)] {
                    if !rows.is_empty() {
                        cx.terminal.print("")?;
                        let heads = ["file", "covered", what, "never ran"];
                        cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?;
                    }
                }
            }
            Some(_) | None => {}
        }
        cx.terminal.say(&summary);
        if let (Some(path), Some(covered)) = (&self.lcov, &covered) {
            let write = std::fs::write(path, testkit::lcov(covered));
            write.with_context(|| format!("write {}", path.display()))?;
        }
        if let Some(path) = &self.junit {
            let write = std::fs::write(path, testkit::junit(&reports));
            write.with_context(|| format!("write {}", path.display()))?;
        }
        if passed && reports.iter().all(|report| report.tests.is_empty()) {
            cx.terminal.say(&match &self.filter {
                Some(part) => format!("no test has {part:?} in its name"),
                None => "no file has a test; one is t.test(name, function)".to_owned(),
            });
            return Ok(Exit::NotFound);
        }
        Ok(if passed { Exit::Ok } else { Exit::Failed })
    }
}

fn covered_json(file: &Covered) -> serde_json::Value {
    let ((ran, all), (nodes_ran, nodes)) = (file.lines(), file.nodes());
    let mut shown = json!({ "file": file.path, "lines": all, "ran": ran, "missed": file.missed() });
    if nodes > 0 {
        let missed: Vec<_> = file
            .missed_nodes()
            .map(|node| json!({ "at": node.at, "line": node.line, "title": node.title }))
            .collect();
        shown["nodes"] = json!({ "all": nodes, "ran": nodes_ran, "missed": missed });
    }
    shown
}

fn as_json(report: &FileReport) -> serde_json::Value {
    let tests = report.tests.iter().map(|test| {
        json!({
            "name": test.name,
            "line": test.line,
            "passed": test.failed.is_none(),
            "problem": test.problem(),
            "took_ms": test.took_ms,
            "crashes": test.crashes,
            "said": test.said,
            "findings": test.findings,
        })
    });
    json!({
        "file": report.path.display().to_string(),
        "broken": report.broken.as_ref().map(|broken| broken.message.clone()),
        "tests": tests.collect::<Vec<_>>(),
    })
}
