//! Entries as events of the whole host: what a program beside the host wants to know of its runs.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    engine::{
        rfc3339,
        view::shown::{add_files, outcome_word},
    },
    journal::{Decision, Entry, Fact, Outcome, Scheduled},
    protocol::{Failure, Json, RunId, StepKind, TaskId, WorkerId},
};

/// An event of the host. Inputs and outputs are not part of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HostEventView {
    /// The place behind this event: give it as `since` to go on from there.
    pub cursor: String,
    /// `run.started`, `run.ended`, `task.opened`, `session.connected`, `blueprint.published`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// RFC 3339, UTC.
    pub at: String,
    /// The run, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// The blueprint: of the run, or that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprint: Option<String>,
    /// The number of the event in its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// The details.
    #[schema(value_type = serde_json::Value)]
    pub data: Json,
}

/// The types of the feed, for messages and documents.
pub(crate) const TYPES: [&str; 29] = [
    "run.started",
    "run.continued",
    "run.waiting",
    "run.paused",
    "run.resumed",
    "run.cancel_requested",
    "run.compensating",
    "run.ended",
    "task.opened",
    "task.started",
    "task.attempt_failed",
    "task.asked",
    "task.advised",
    "task.answered",
    "task.reminded",
    "task.expired",
    "task.completed",
    "task.failed",
    "task.canceled",
    "session.opened",
    "session.connected",
    "session.disconnected",
    "session.closed",
    "worker.connected",
    "worker.left",
    "blueprint.published",
    "blueprint.archived",
    "blueprint.restored",
    "blueprint.deleted",
];

/// A step that is a task, as later entries need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskOf {
    pub(crate) id: TaskId,
    pub(crate) agent: String,
}

impl TaskOf {
    /// Returns the task of a scheduled step; `None` if it is none that an operator got.
    pub(crate) fn of(run: u64, step: &Scheduled, at_ms: u64) -> Option<Self> {
        (step.kind == StepKind::Task)
            .then(|| Self { id: TaskId::new(run, step.step, at_ms), agent: step.name.clone() })
    }

    fn with(&self, more: Value) -> Value {
        let mut data = json!({ "task": self.id, "agent": self.agent });
        crate::engine::view::events::merge(&mut data, more);
        data
    }

    /// Returns the data of an event of one of its attempts.
    fn at(&self, attempt: u32, more: Value) -> Value {
        let mut data = self.with(json!({ "step": self.id.step(), "attempt": attempt }));
        crate::engine::view::events::merge(&mut data, more);
        data
    }
}

/// Returns the type and the data of an entry; `None` if it is no event of the host. `task` finds the
/// task of a step.
pub(crate) fn say(
    run: u64,
    entry: &Entry,
    task: &mut dyn FnMut(u32) -> Option<TaskOf>,
) -> Option<(&'static str, Value)> {
    Some(match &entry.fact {
        Fact::RunStarted(it) if it.generation > 0 => {
            ("run.continued", json!({ "generation": it.generation }))
        }
        Fact::RunStarted(it) => {
            let cause = it.trigger.to_value().get("kind").cloned().unwrap_or_default();
            let called = it.parent.is_some();
            let data =
                json!({ "hash": it.hash, "by": it.principal, "cause": cause, "called": called });
            ("run.started", data)
        }
        Fact::StepScheduled(it) => match it.kind {
            StepKind::Task => (
                "task.opened",
                task(it.step)?.with(json!({
                    "step": it.step, "summary": it.summary,
                    "worker_id": WorkerId::new(run, it.step, it.attempt),
                })),
            ),
            StepKind::Signal => (
                "run.waiting",
                json!({
                    "step": it.step, "on": "signal", "name": it.name, "until": it.wake_at_ms.map(rfc3339),
                }),
            ),
            StepKind::Timer => (
                "run.waiting",
                json!({
                    "step": it.step, "on": "timer", "until": it.wake_at_ms.map(rfc3339),
                }),
            ),
            StepKind::Child => (
                "run.waiting",
                json!({
                    "step": it.step, "on": "run", "name": it.name, "run": it.call_id,
                }),
            ),
            _ => return None,
        },
        Fact::AttemptDelivered { step, attempt, worker, .. } => {
            ("task.started", task(*step)?.at(*attempt, json!({ "worker": worker })))
        }
        Fact::AttemptClosed(it) => {
            let more = json!({ "error": brief(&it.error), "retry_at": rfc3339(it.retry_at_ms) });
            ("task.attempt_failed", task(it.step)?.at(it.attempt, more))
        }
        Fact::StepEnded { step, attempt, outcome, .. } => {
            let task = task(*step)?;
            match outcome {
                Outcome::Completed(_) => {
                    let mut data = task.at(*attempt, json!({}));
                    add_files(&mut data, run, entry.additions.files());
                    ("task.completed", data)
                }
                Outcome::Failed(failure) => {
                    ("task.failed", task.at(*attempt, json!({ "error": brief(failure) })))
                }
                Outcome::Canceled(reason) => {
                    ("task.canceled", task.at(*attempt, json!({ "reason": reason })))
                }
            }
        }
        Fact::Decided(decision) => return decided(decision, task),
        Fact::RunEnded(outcome) => {
            let mut data = json!({ "status": outcome_word(outcome) });
            match outcome {
                Outcome::Completed(_) => {}
                Outcome::Failed(failure) => data["error"] = brief(failure),
                Outcome::Canceled(reason) => data["reason"] = reason.as_str().into(),
            }
            ("run.ended", data)
        }
        Fact::StepRecorded(..)
        | Fact::AttemptOpened(_)
        | Fact::SignalReceived(_)
        | Fact::Noted { .. }
        | Fact::SecretAccessed { .. } => return None,
    })
}

fn decided(
    decision: &Decision,
    task: &mut dyn FnMut(u32) -> Option<TaskOf>,
) -> Option<(&'static str, Value)> {
    Some(match decision {
        Decision::Cancel { by, reason } => {
            ("run.cancel_requested", json!({ "by": by, "reason": reason }))
        }
        Decision::Pause { by, reason } => ("run.paused", json!({ "by": by, "reason": reason })),
        Decision::Resume { by } => ("run.resumed", json!({ "by": by })),
        Decision::Compensate { ending } => {
            ("run.compensating", json!({ "ending": outcome_word(ending) }))
        }
        Decision::Escalate { step, attempt, .. } => {
            ("task.asked", task(*step)?.at(*attempt, json!({})))
        }
        Decision::Advise { by, step, attempt, .. } => {
            ("task.advised", task(*step)?.at(*attempt, json!({ "by": by })))
        }
        Decision::Answered { by, step, attempt, missing, .. } => {
            ("task.answered", task(*step)?.at(*attempt, json!({ "by": by, "missing": missing })))
        }
        Decision::Remind { step, attempt, count } => {
            ("task.reminded", task(*step)?.at(*attempt, json!({ "count": count })))
        }
        Decision::Expire { by, step, attempt } => {
            ("task.expired", task(*step)?.at(*attempt, json!({ "by": by })))
        }
        _ => return None,
    })
}

/// Returns a failure without its data.
fn brief(failure: &Failure) -> Value {
    json!({ "kind": failure.kind, "message": failure.message, "step": failure.step })
}
