//! The history of people's answers, beside the runs: the person, the task, the time.
//!
//! The record has no word of prompt, input or answer: those are in the run, and are deleted with it.

use serde::{Deserialize, Serialize};

use super::facts::{self, Turn};
use crate::{
    protocol::{RunId, TaskId},
    store::Write,
};

/// The place of the history among the values that are kept with an expiry. No layer of middleware has
/// a name with a space.
pub(crate) const KEPT: &str = "answered task";
/// The retention of a line, in milliseconds.
const KEPT_MS: u64 = 30 * 86_400_000;

/// A line of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AnsweredTask {
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: RunId,
    /// Its step.
    pub step: u32,
    /// Its agent.
    pub agent: String,
    /// The subject that answered.
    pub by: String,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// True for a rejection.
    pub rejected: bool,
}

/// Adds a line to the history, with the commit of the answer.
pub(crate) fn record(turn: &mut Turn<'_>, step: u32, by: &str, rejected: bool) {
    let at_ms = facts::time_of(turn);
    let Some(row) = turn.run.task(step).and_then(|task| task.row.as_ref()) else { return };
    let line = AnsweredTask {
        task: TaskId::new(row.run, row.step, row.scheduled_ms),
        run: turn.run.id,
        step,
        agent: row.agent.clone(),
        by: by.to_owned(),
        at_ms,
        rejected,
    };
    // The newest come first.
    let key = format!("{:016x} {} {by}", u64::MAX - at_ms, line.task);
    let value = serde_json::to_string(&line).expect("a line is plain data");
    let (layer, expires_ms) = (KEPT.to_owned(), Some(at_ms + KEPT_MS));
    turn.run.pending.writes.push(Write::PutKept { layer, key, value, expires_ms });
}
