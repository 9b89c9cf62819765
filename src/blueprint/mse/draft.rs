//! Collects the report while a document is read, and everything that the flow needs around it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    helpers::Helpers,
    lua::{literal, shown},
    report::{ImportError, Report},
};

/// Nodes and expressions of a flow.
const MOST: usize = 20_000;
/// The maximum depth of nodes and expressions.
const DEEPEST: usize = 60;

/// The options of an import.
#[derive(Debug, Clone)]
pub struct Options {
    /// True if the commands of its programs become code.
    pub trust: bool,
    /// The operator of its agents that call a model.
    pub model: Option<String>,
    /// The operators that exist here.
    pub operators: BTreeSet<String>,
    /// The edition that the blueprint is written in.
    pub edition: u32,
}

/// The results so far, while a document is read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The report for the reader.
    pub report: Report,
    /// The functions that the flow uses.
    pub helpers: Helpers,
    /// The functions of the foreign host that it calls.
    pub externs: BTreeSet<String>,
    /// The name of each agent here, by its foreign name.
    pub agents: BTreeMap<String, String>,
    /// The reader of an agent's result, by its foreign name: the arguments after the result.
    pub printed: BTreeMap<String, String>,
    /// The auditors of an agent's results, by its foreign name.
    pub audits: BTreeMap<String, Vec<String>>,
    count: usize,
}

impl Draft {
    /// Counts a node or an expression.
    pub(crate) fn enter(&mut self, at: &str, depth: usize) -> Result<(), ImportError> {
        self.count += 1;
        if self.count > MOST {
            return Err(ImportError::new(at, format!("the flow has more than {MOST} parts")));
        }
        if depth > DEEPEST {
            return Err(ImportError::new(at, format!("the flow is over {DEEPEST} levels deep")));
        }
        Ok(())
    }

    /// Writes a value, and notes what it needs.
    pub(crate) fn literal(&mut self, value: &serde_json::Value, depth: usize, at: &str) -> String {
        let written = literal(value, depth);
        if written.null {
            self.helpers.uses("null");
        }
        for number in &written.inexact {
            let what =
                format!("{} is a string here: Lua numbers are exact up to 2^53", shown(number));
            self.report.differs(at, what);
        }
        written.text
    }
}
