//! The view of a step.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::view::shown::{FailureView, is_task, rfc3339},
    journal::{Step, Usage},
    protocol::{Json, RunId, StepKind, StepState, TaskId, WorkerId},
};

/// A step of a run: a row of its chain.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StepView {
    /// `run_…/7`: the run and the step's number.
    pub id: String,
    /// The step's number in its run, from 1.
    pub seq: u32,
    /// The branch, empty for the main one: `3.1/0.2`.
    pub scope: String,
    /// The branch in words: `map, item 2`; absent for the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The line of the source that scheduled it: `main.lua:12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The step's place in its branch, from 0.
    pub index: u32,
    /// The step before it in the same branch.
    pub prev: Option<u32>,
    /// task, timer, signal, child, state, local, model_call, tool_call.
    pub kind: String,
    /// The agent, signal, blueprint or operation.
    pub name: String,
    /// One line for a person.
    pub summary: Option<String>,
    /// pending, processing, completed, failed, canceled.
    pub state: String,
    /// The step of the composite that it is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub composite: Option<u32>,
    /// The step of the composite or of the model's loop that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// The provider's id of a tool's call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The operator of a composite's member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Attempts so far.
    pub attempts: u32,
    /// The id of the worker of the last attempt, for tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker_id: Option<WorkerId>,
    /// The task's id, for tasks.
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskId>,
    /// RFC 3339, UTC.
    pub scheduled_at: String,
    /// RFC 3339, UTC: when a worker got the last attempt.
    pub started_at: Option<String>,
    /// RFC 3339, UTC.
    pub ended_at: Option<String>,
    /// From scheduled to ended, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The part of that time in which it waited for a worker, a place or another attempt, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
    /// The part of that time in which its last attempt worked, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_ms: Option<u64>,
    /// The usage, as far as it was reported.
    #[schema(value_type = Option<Object>)]
    pub usage: Option<Usage>,
    /// The error.
    pub error: Option<FailureView>,
    /// The request; only in the view of one step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub request: Option<Json>,
    /// The value; only where one step is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub response: Option<Json>,
    /// The effects that were applied with its results, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub effects: Vec<Json>,
    /// The times of its attempts, if it had several; for pictures. A program asks for the attempts.
    #[serde(skip)]
    #[schema(ignore)]
    pub spans: Vec<AttemptSpan>,
}

/// The times of one attempt of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptSpan {
    /// The number, from 1.
    pub attempt: u32,
    /// When it was opened, in Unix milliseconds.
    pub opened_ms: u64,
    /// When the work began, in Unix milliseconds, if that is known.
    pub started_ms: Option<u64>,
    /// When it ended, in Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// The worker that it was delivered to.
    pub worker: Option<String>,
    /// pending, processing, completed, failed, canceled, followed.
    pub state: &'static str,
}

/// Returns the times of the attempts of a step that had several, the last ones.
fn spans(step: &Step) -> Vec<AttemptSpan> {
    let Some(last) = step.earlier.last() else { return Vec::new() };
    let earlier = step.earlier.iter().map(|it| AttemptSpan {
        attempt: it.attempt,
        opened_ms: it.opened_ms,
        started_ms: it.delivered_ms,
        ended_ms: Some(it.ended_ms),
        worker: it.worker.clone(),
        state: if it.failed { "failed" } else { "followed" },
    });
    // Until the next attempt is opened, there is none in progress.
    let current = (last.attempt != step.attempt).then(|| AttemptSpan {
        attempt: step.attempt,
        opened_ms: step.opened_ms,
        started_ms: step.delivered_ms.or_else(|| {
            step.ended_ms.zip(step.times).map(|(ended, (_, ran))| ended.saturating_sub(ran))
        }),
        ended_ms: step.ended_ms,
        worker: step.worker.clone(),
        state: state_word(step.state),
    });
    earlier.chain(current).collect()
}

fn state_word(state: StepState) -> &'static str {
    match state {
        StepState::Pending => "pending",
        StepState::Processing => "processing",
        StepState::Completed => "completed",
        StepState::Failed => "failed",
        StepState::Canceled => "canceled",
    }
}

/// Returns the view of a step; with its request and result if `whole`.
pub(crate) fn step(run: RunId, step: &Step, whole: bool) -> StepView {
    let (scheduled, number) = (&step.scheduled, step.scheduled.step);
    let task = is_task(scheduled.kind).then(|| TaskId::new(run.num(), number, step.scheduled_ms));
    StepView {
        id: format!("{run}/{number}"),
        seq: number,
        scope: scheduled.key.scope.to_string(),
        branch: step.branch.clone(),
        line: step.line.clone(),
        index: scheduled.key.index,
        prev: scheduled.prev,
        kind: scheduled.kind.as_str().to_owned(),
        name: scheduled.name.clone(),
        summary: scheduled.summary.clone(),
        state: state_word(step.state).to_owned(),
        composite: scheduled.member().map(|(composite, _)| composite),
        operator: scheduled.member().map(|(_, operator)| operator.to_owned()),
        parent: scheduled.whole(),
        call_id: scheduled.call_id.clone().filter(|_| scheduled.kind == StepKind::ToolCall),
        attempts: step.attempt,
        worker_id: task.map(|_| WorkerId::new(run.num(), number, step.attempt)),
        task,
        scheduled_at: rfc3339(step.scheduled_ms),
        started_at: step.delivered_ms.map(rfc3339),
        ended_at: step.ended_ms.map(rfc3339),
        duration_ms: step.ended_ms.map(|ended| ended.saturating_sub(step.scheduled_ms)),
        queued_ms: step.times.map(|(queued, _)| queued),
        ran_ms: step.times.map(|(_, ran)| ran),
        usage: step.usage.as_deref().cloned(),
        error: step.error.as_deref().cloned().map(FailureView::from),
        request: whole.then(|| scheduled.request.clone()),
        response: if whole { step.output.clone() } else { None },
        effects: step.effects.iter().flat_map(|it| it.decode::<Vec<Json>>()).flatten().collect(),
        spans: spans(step),
    }
}
