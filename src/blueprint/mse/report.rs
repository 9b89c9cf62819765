//! The report of an import: the parts that stayed the same, that differ, and that need a decision.

use serde::Serialize;
use thiserror::Error;

/// Lines of each part of a report.
const LINES: usize = 500;

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The part of the foreign document: `agents.reviewer.runner`.
    pub at: String,
    /// Its outcome.
    pub what: String,
}

/// The report on a foreign blueprint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The parts that mean the same here.
    pub same: Vec<Note>,
    /// The parts that mean something else here, or were left out.
    pub differs: Vec<Note>,
    /// The parts that need a decision before it runs.
    pub decide: Vec<Note>,
}

impl Report {
    /// Notes something that means the same.
    pub(crate) fn same(&mut self, at: impl Into<String>, what: impl Into<String>) {
        push(&mut self.same, at.into(), what.into());
    }

    /// Notes something that means something else.
    pub(crate) fn differs(&mut self, at: impl Into<String>, what: impl Into<String>) {
        push(&mut self.differs, at.into(), what.into());
    }

    /// Notes something that is to be decided.
    pub(crate) fn decide(&mut self, at: impl Into<String>, what: impl Into<String>) {
        push(&mut self.decide, at.into(), what.into());
    }
}

fn push(notes: &mut Vec<Note>, at: String, what: String) {
    let note = Note { at, what };
    if notes.len() < LINES && !notes.contains(&note) {
        notes.push(note);
    }
}

/// The reason why a document cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("import {at}: {what}")]
pub struct ImportError {
    /// The part of the document.
    pub at: String,
    /// The mistake.
    pub what: String,
}

impl ImportError {
    pub(crate) fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into() }
    }
}
