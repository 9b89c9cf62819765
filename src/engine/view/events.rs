//! Converts journal entries to events.

use serde_json::json;

use crate::{
    engine::{
        EventView, rfc3339,
        view::shown::{add_files, is_task, outcome_word},
    },
    journal::{Decision, Entry, Fact, Note, Outcome, Scheduled},
    protocol::{Json, StepKind, TaskId, WorkerId},
};

/// The kind of the lossy event that means: read the store.
pub(crate) const SYNC: &str = "sync";

/// Returns the lossy event that means: read the store.
pub(crate) fn sync(now_ms: u64) -> EventView {
    EventView { seq: None, kind: SYNC.into(), at: rfc3339(now_ms), data: Json::null() }
}

/// Returns an entry as an event.
pub(crate) fn view(run: u64, entry: &Entry) -> EventView {
    let (kind, data) = say(run, entry);
    EventView {
        seq: Some(entry.seq),
        kind: kind.into(),
        at: rfc3339(entry.at_ms),
        data: data.into(),
    }
}

/// The name and the data of an entry's event.
pub(crate) fn say(run: u64, entry: &Entry) -> (&'static str, serde_json::Value) {
    match &entry.fact {
        Fact::RunStarted(started) => (
            if started.generation == 0 { "run.started" } else { "run.continued" },
            json!({
                "blueprint": started.blueprint,
                "hash": started.hash,
                "input": started.input,
                "trigger": started.trigger,
                "by": started.principal,
            }),
        ),
        Fact::StepScheduled(it) => ("step.scheduled", scheduled(run, it, entry.at_ms)),
        Fact::StepRecorded(it, outcome) => {
            let mut data = scheduled(run, it, entry.at_ms);
            let (kind, more) = ended(outcome);
            merge(&mut data, more);
            (kind, data)
        }
        Fact::AttemptDelivered { step, attempt, worker, deadline_ms } => (
            "step.started",
            json!({
                "step": step,
                "attempt": attempt,
                "worker": worker,
                "worker_id": WorkerId::new(run, *step, *attempt),
                "deadline": deadline_ms.map(rfc3339),
            }),
        ),
        Fact::AttemptClosed(closed) => (
            "attempt.failed",
            json!({
                "step": closed.step,
                "attempt": closed.attempt,
                "worker_id": WorkerId::new(run, closed.step, closed.attempt),
                "error": closed.error,
                "usage": closed.usage,
                "retry_at": rfc3339(closed.retry_at_ms),
            }),
        ),
        Fact::AttemptOpened(opened) => {
            let worker = WorkerId::new(run, opened.step, opened.attempt);
            let data =
                json!({ "step": opened.step, "attempt": opened.attempt, "worker_id": worker });
            ("attempt.opened", data)
        }
        Fact::StepEnded { step, attempt, outcome, usage, .. } => {
            let (kind, more) = ended(outcome);
            let mut data = json!({ "step": step, "attempt": attempt, "usage": usage });
            merge(&mut data, more);
            add_files(&mut data, run, entry.additions.files());
            (kind, data)
        }
        Fact::SignalReceived(signal) => {
            ("signal", json!({ "name": signal.name, "payload": signal.payload }))
        }
        Fact::Noted { note, .. } => noted(note),
        Fact::Decided(decision) => {
            let (kind, mut data) = decided(decision);
            if let Some(step) = entry.additions.called() {
                merge(&mut data, json!({ "step": step }));
            }
            (kind, data)
        }
        Fact::SecretAccessed { step, attempt, event } => {
            ("secret.accessed", json!({ "step": step, "attempt": attempt, "access": event }))
        }
        Fact::RunEnded(outcome) => {
            let mut data = json!({ "status": outcome_word(outcome) });
            merge(&mut data, ended(outcome).1);
            ("run.ended", data)
        }
    }
}

/// Returns the event of a requested step.
fn scheduled(run: u64, it: &Scheduled, at_ms: u64) -> serde_json::Value {
    let mut data = json!({
        "step": it.step,
        "scope": it.key.scope.to_string(),
        "index": it.key.index,
        "kind": it.kind.as_str(),
        "name": it.name,
        "summary": it.summary,
    });
    if let Some((composite, operator)) = it.member() {
        data["composite"] = composite.into();
        data["operator"] = operator.into();
    }
    if let Some(parent) = it.whole() {
        data["parent"] = parent.into();
    }
    if it.kind == StepKind::ToolCall {
        data["call_id"] = it.call_id.clone().into();
    }
    if it.kind == StepKind::ModelCall && it.request.to_value()["compact"] == true {
        data["compact"] = true.into();
    }
    if is_task(it.kind) {
        data["task"] = json!(TaskId::new(run, it.step, at_ms));
        data["worker_id"] = json!(WorkerId::new(run, it.step, it.attempt));
    }
    data
}

/// Returns the event of a decision.
fn decided(decision: &Decision) -> (&'static str, serde_json::Value) {
    match decision {
        Decision::Cancel { by, reason } => {
            ("run.cancel_requested", json!({ "by": by, "reason": reason }))
        }
        Decision::Pause { by, reason } => ("run.paused", json!({ "by": by, "reason": reason })),
        Decision::Resume { by } => ("run.resumed", json!({ "by": by })),
        Decision::Copied { by, from, step } => {
            ("run.copied", json!({ "by": by, "from": from, "step": step }))
        }
        Decision::Compensate { ending } => {
            ("run.compensating", json!({ "ending": outcome_word(ending) }))
        }
        Decision::Seat { by, operator, session, epoch } => (
            "seat.taken",
            json!({ "by": by, "operator": operator, "session": session, "epoch": epoch }),
        ),
        Decision::Spent(spent) => ("run.spent", json!(spent)),
        Decision::Joined { session, party } => {
            ("session.joined", json!({ "session": session, "party": party }))
        }
        Decision::Escalate { step, attempt, question } => {
            ("step.escalated", json!({ "step": step, "attempt": attempt, "question": question }))
        }
        Decision::Follow(followed) => (
            "step.followed",
            json!({
                "step": followed.step,
                "attempt": followed.attempt,
                "output": followed.output,
                "effects": followed.effects,
                "usage": followed.usage,
                "why": followed.why,
                "operator": followed.operator,
            }),
        ),
        Decision::Advise { by, step, attempt, answer } => (
            "step.advised",
            json!({ "by": by, "step": step, "attempt": attempt, "answer": answer }),
        ),
        Decision::Answered { by, step, attempt, output, missing } => (
            "task.answered",
            json!({ "by": by, "step": step, "attempt": attempt, "output": output,
                "missing": missing }),
        ),
        Decision::Remind { step, attempt, count } => {
            ("task.reminded", json!({ "step": step, "attempt": attempt, "count": count }))
        }
        Decision::Expire { by, step, attempt } => {
            ("task.expired", json!({ "by": by, "step": step, "attempt": attempt }))
        }
        Decision::Told { step, kind, data } => (told(kind), json!({ "step": step, "event": data })),
    }
}

/// Returns the event of a flow's note.
pub(crate) fn noted(note: &Note) -> (&'static str, serde_json::Value) {
    match note {
        Note::Status { text, progress } => {
            ("status", json!({ "text": text, "progress": progress }))
        }
        Note::Log { level, message, data } => {
            ("log", json!({ "level": level, "message": message, "data": data }))
        }
        Note::Event { topic, data } => ("event", json!({ "topic": topic, "data": data })),
    }
}

/// Returns the kind of a lifecycle event in streams.
pub(crate) fn told(kind: &str) -> &'static str {
    match kind {
        "budget" => "lifecycle.budget",
        "compaction" => "lifecycle.compaction",
        _ => "lifecycle.observable",
    }
}

pub(crate) fn ended(outcome: &Outcome) -> (&'static str, serde_json::Value) {
    match outcome {
        Outcome::Completed(output) => ("step.completed", json!({ "output": output })),
        Outcome::Failed(failure) => ("step.failed", json!({ "error": failure })),
        Outcome::Canceled(reason) => ("step.canceled", json!({ "reason": reason })),
    }
}

pub(crate) fn merge(into: &mut serde_json::Value, more: serde_json::Value) {
    if let (serde_json::Value::Object(into), serde_json::Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
