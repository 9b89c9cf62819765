//! The attempts of a step, folded from its run's entries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::view::{
        events::told,
        shown::{FailureView, is_task, outcome_word, rfc3339},
    },
    journal::{Additions, Decision, Entry, Fact, Outcome, Scheduled, Usage},
    protocol::{Json, RunId, WorkerId},
    store::EvidenceRow,
};

/// The maximum number of attempts, decisions and refused results that are shown, the last ones.
pub(crate) const SHOWN: usize = 1_000;
/// The maximum size of a refused result that is shown, in bytes.
const BODY: usize = 4 << 10;

/// The attempts of a step.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct AttemptsView {
    /// The attempts in their order; empty for a step that is no task. At most the last 1,000.
    pub items: Vec<AttemptView>,
    /// The system prompt of the last attempt, where the agent has one. Like `prompt`, it is rendered
    /// again from the recorded input once the attempt is over, and needs the verb `task.read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The rendered prompt of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The operators and tools that the layers of the middleware left to a model; absent for all that
    /// its agent has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// The decisions of layers, people and operators about the step, in order.
    pub decisions: Vec<DecisionView>,
}

/// One attempt of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// The number, from 1.
    pub attempt: u32,
    /// The id of the attempt's worker.
    #[schema(value_type = String)]
    pub worker_id: WorkerId,
    /// pending, processing, completed, failed, canceled, followed.
    pub state: String,
    /// The worker that it was delivered to.
    pub worker: Option<String>,
    /// The session that it was delivered to.
    pub session: Option<String>,
    /// RFC 3339, UTC: when the attempt was opened.
    pub scheduled_at: String,
    /// RFC 3339, UTC: when it reached a worker outside the process.
    pub delivered_at: Option<String>,
    /// RFC 3339, UTC: when the work began.
    pub started_at: Option<String>,
    /// RFC 3339, UTC: the last sign of life of the open attempt's worker, if it holds a lease.
    pub last_heartbeat_at: Option<String>,
    /// RFC 3339, UTC: when it times out.
    pub deadline: Option<String>,
    /// RFC 3339, UTC.
    pub ended_at: Option<String>,
    /// The error.
    pub error: Option<FailureView>,
    /// The usage, if it was reported.
    #[schema(value_type = Option<Object>)]
    pub usage: Option<Usage>,
    /// RFC 3339, UTC: when the next attempt may start.
    pub retry_at: Option<String>,
    /// True if it counts against `max_attempts`. An interruption does not.
    pub counts: bool,
    /// Results that arrived too late or were otherwise refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedView>,
}

/// A refused result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedView {
    /// RFC 3339, UTC.
    pub at: String,
    /// The code of the refusal: `fenced`, `run_closed`, `invalid_result`, …
    pub code: String,
    /// The beginning of the refused body, at most 4 KiB.
    pub body: String,
}

/// A decision about a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// RFC 3339, UTC.
    pub at: String,
    /// The type of the event: `step.followed`, `lifecycle.budget`, `task.answered`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The data of the event.
    #[schema(value_type = serde_json::Value)]
    pub data: Json,
}

/// A step with its attempts, while entries are folded.
pub(crate) struct Attempts {
    pub(crate) step: Scheduled,
    pub(crate) view: AttemptsView,
}

impl Attempts {
    /// Folds the entries of a history; `None` if it has no such step.
    pub(crate) fn of(run: RunId, number: u32, entries: &[Entry]) -> Option<Self> {
        let mut found: Option<Self> = None;
        for entry in entries {
            if let Fact::StepScheduled(step) | Fact::StepRecorded(step, _) = &entry.fact
                && step.step == number
            {
                found = Some(Self { step: (**step).clone(), view: AttemptsView::default() });
            }
            if let Some(found) = &mut found {
                found.fold(run, entry);
            }
        }
        if let Some(Self { view, .. }) = &mut found {
            let (items, decisions) = (view.items.len(), view.decisions.len());
            view.items.drain(..items.saturating_sub(SHOWN));
            view.decisions.drain(..decisions.saturating_sub(SHOWN));
        }
        found
    }

    fn fold(&mut self, run: RunId, entry: &Entry) {
        let (number, at) = (self.step.step, entry.at_ms);
        match &entry.fact {
            Fact::StepScheduled(step) if step.step == number && is_task(step.kind) => {
                self.open(run, step.attempt, at);
            }
            Fact::StepRecorded(step, outcome) if step.step == number && is_task(step.kind) => {
                self.open(run, step.attempt, at);
                self.end(outcome, None, at, &entry.additions);
            }
            Fact::AttemptOpened(it) if it.step == number => self.open(run, it.attempt, at),
            Fact::AttemptDelivered { step, worker, deadline_ms, .. } if *step == number => {
                let Some(open) = self.view.items.last_mut() else { return };
                open.state = "processing".to_owned();
                open.delivered_at = Some(rfc3339(at));
                open.started_at = Some(rfc3339(at));
                open.deadline = deadline_ms.map(rfc3339);
                open.session = worker.starts_with("ses_").then(|| worker.clone());
                open.worker = Some(worker.clone());
            }
            Fact::AttemptClosed(it) if it.step == number => {
                let Some(open) = self.view.items.last_mut() else { return };
                open.state = "failed".to_owned();
                open.ended_at = Some(rfc3339(at));
                open.error = Some(it.error.clone().into());
                open.usage = it.usage.clone();
                open.retry_at = Some(rfc3339(it.retry_at_ms));
                open.counts = it.counts;
            }
            Fact::StepEnded { step, outcome, usage, .. } if *step == number => {
                self.view.allowed = entry.additions.allowed();
                self.end(outcome, usage.as_ref(), at, &entry.additions);
            }
            Fact::Decided(decision) => self.decided(decision, entry),
            _ => {}
        }
    }

    fn open(&mut self, run: RunId, attempt: u32, at: u64) {
        self.view.items.push(AttemptView {
            attempt,
            worker_id: WorkerId::new(run.num(), self.step.step, attempt),
            state: "pending".to_owned(),
            worker: None,
            session: None,
            scheduled_at: rfc3339(at),
            delivered_at: None,
            started_at: None,
            last_heartbeat_at: None,
            deadline: None,
            ended_at: None,
            error: None,
            usage: None,
            retry_at: None,
            counts: true,
            refused: Vec::new(),
        });
    }

    fn end(&mut self, outcome: &Outcome, usage: Option<&Usage>, at: u64, additions: &Additions) {
        let Some(open) = self.view.items.last_mut().filter(|it| it.ended_at.is_none()) else {
            return;
        };
        open.state = outcome_word(outcome).to_owned();
        open.ended_at = Some(rfc3339(at));
        open.usage = usage.cloned();
        // In-process work is delivered to nobody; the journal has how long it ran.
        if let (None, Some((_, ran_ms))) = (&open.started_at, additions.times()) {
            open.started_at = Some(rfc3339(at.saturating_sub(ran_ms)));
        }
        if let Outcome::Failed(failure) = outcome {
            open.error = Some(failure.clone().into());
        }
    }

    fn decided(&mut self, decision: &Decision, entry: &Entry) {
        let number = self.step.step;
        let of = match decision {
            Decision::Follow(it) if it.step == number => {
                if let Some(open) = self.view.items.last_mut() {
                    open.state = "followed".to_owned();
                    open.ended_at = Some(rfc3339(entry.at_ms));
                    open.usage = it.usage.clone();
                }
                Some((
                    "step.followed",
                    serde_json::json!({ "why": it.why, "operator": it.operator }),
                ))
            }
            Decision::Escalate { step, attempt, question } => (*step == number).then(|| {
                ("step.escalated", serde_json::json!({ "attempt": attempt, "question": question }))
            }),
            Decision::Advise { by, step, attempt, answer } => (*step == number).then(|| {
                let data = serde_json::json!({ "by": by, "attempt": attempt, "answer": answer });
                ("step.advised", data)
            }),
            Decision::Answered { by, step, attempt, missing, .. } => (*step == number).then(|| {
                let data = serde_json::json!({ "by": by, "attempt": attempt, "missing": missing });
                ("task.answered", data)
            }),
            Decision::Remind { step, attempt, count } => (*step == number).then(|| {
                ("task.reminded", serde_json::json!({ "attempt": attempt, "count": count }))
            }),
            Decision::Expire { by, step, attempt } => (*step == number)
                .then(|| ("task.expired", serde_json::json!({ "by": by, "attempt": attempt }))),
            Decision::Told { step, kind, data } => {
                (*step == Some(number)).then(|| (told(kind), serde_json::json!({ "event": data })))
            }
            _ => None,
        };
        if let Some((kind, data)) = of {
            let at = rfc3339(entry.at_ms);
            self.view.decisions.push(DecisionView { at, kind: kind.to_owned(), data: data.into() });
        }
    }

    /// Adds the refused results to their attempts.
    pub(crate) fn refused(&mut self, rows: &[EvidenceRow]) {
        let own = rows.iter().filter(|row| row.step == self.step.step);
        for row in own.rev().take(SHOWN).collect::<Vec<_>>().into_iter().rev() {
            let of = |it: &&mut AttemptView| it.attempt == row.attempt;
            let Some(attempt) = self.view.items.iter_mut().find(of) else { continue };
            let end =
                (0..=row.body.len().min(BODY)).rev().find(|at| row.body.is_char_boundary(*at));
            attempt.refused.push(RefusedView {
                at: rfc3339(row.at_ms),
                code: row.code.clone(),
                body: row.body[..end.unwrap_or(0)].to_owned(),
            });
        }
    }
}
