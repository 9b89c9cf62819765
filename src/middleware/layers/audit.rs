//! The layer that writes the audit log, at every boundary.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    middleware::{
        About, AuditLine, Boundary, Change, DispatchObserver, Dispatched, ExecCall, ExecObserver,
        Keep, Settled, StoreCall, StoreObserver, Stored, Watched, exec,
    },
    protocol::Failure,
};

/// The settings of `kind = "audit"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSettings {
    /// The boundaries to log; all of them by default.
    #[serde(default = "everywhere")]
    pub at: Vec<Boundary>,
}

fn everywhere() -> Vec<Boundary> {
    vec![Boundary::Dispatch, Boundary::Store, Boundary::Exec]
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { at: everywhere() }
    }
}

/// Appends a line to the audit log for every operation.
#[derive(Clone)]
pub struct Audit {
    name: Arc<str>,
    keep: Arc<dyn Keep>,
}

impl Audit {
    /// Creates an audit that writes to `keep`.
    pub fn new(name: &str, keep: Arc<dyn Keep>) -> Self {
        Self { name: name.into(), keep }
    }
}

fn line(about: &About, event: &str) -> AuditLine {
    AuditLine {
        boundary: Boundary::Dispatch.as_str().to_owned(),
        event: event.to_owned(),
        run: Some(about.run.to_string()),
        task: Some(about.task.to_string()),
        attempt: Some(about.attempt),
        agent: Some(about.agent.to_string()),
        target: Some(about.operator.to_string()),
        principal: Some(about.principal.to_string()),
        ..AuditLine::default()
    }
}

#[async_trait]
impl DispatchObserver for Audit {
    fn name(&self) -> &str {
        &self.name
    }

    async fn observe(&self, watched: Watched<'_>) -> Result<(), Failure> {
        let dispatch = watched.dispatch();
        let about = Arc::clone(&dispatch.about);
        if !about.again {
            let hash = blake3::hash(dispatch.input.as_str().as_bytes()).to_hex().to_string();
            let line = AuditLine { hash: Some(hash), ..line(&about, "dispatched") };
            // The line must be durable before the dispatch happens.
            self.keep.write(Change::Audit(Box::new(line))).await?;
        }
        let outcome = match watched.run().await {
            Ok(Dispatched::Parked) => return Ok(()),
            // The attempt was settled elsewhere, and that was logged.
            _ if about.is_over() => return Ok(()),
            Ok(Dispatched::Done(_)) => "done",
            Ok(Dispatched::Short(short)) => &short.failure.kind,
            Err(failure) => &failure.kind,
        };
        let line = AuditLine { outcome: Some(outcome.to_owned()), ..line(&about, "settled") };
        self.keep.write(Change::Audit(Box::new(line))).await
    }

    fn settled(&self, about: &About, outcome: &Settled) {
        let outcome = Some(exec::settled_word(outcome).to_owned());
        let line = AuditLine { outcome, ..line(about, "settled") };
        self.keep.post(Change::Audit(Box::new(line)));
    }
}

impl StoreObserver for Audit {
    fn name(&self) -> &str {
        &self.name
    }

    fn stored(&self, call: &StoreCall, outcome: &Stored) {
        let value = call.value.as_ref();
        self.keep.post(Change::Audit(Box::new(AuditLine {
            boundary: Boundary::Store.as_str().to_owned(),
            event: call.op.as_str().to_owned(),
            run: call.run.map(|run| run.to_string()),
            target: Some(format!("{}/{}", call.scope, call.key)),
            principal: Some(call.principal.to_string()),
            hash: value.map(|it| blake3::hash(it.as_str().as_bytes()).to_hex().to_string()),
            outcome: Some(exec::word(outcome).to_owned()),
            ..AuditLine::default()
        })));
    }
}

impl Audit {
    fn exec_line(call: &ExecCall, event: &str) -> AuditLine {
        AuditLine {
            boundary: Boundary::Exec.as_str().to_owned(),
            event: event.to_owned(),
            run: Some(call.run.to_string()),
            task: Some(call.task.to_string()),
            attempt: Some(call.attempt),
            agent: Some(call.agent.to_string()),
            target: Some(call.program.clone()),
            ..AuditLine::default()
        }
    }
}

impl ExecObserver for Audit {
    fn name(&self) -> &str {
        &self.name
    }

    fn starting(&self, call: &ExecCall) {
        self.keep.post(Change::Audit(Box::new(Self::exec_line(call, "starting"))));
    }

    fn ended(&self, call: &ExecCall, outcome: &Result<Dispatched, Failure>) {
        let outcome = Some(exec::word(outcome).to_owned());
        let line = AuditLine { outcome, ..Self::exec_line(call, "ended") };
        self.keep.post(Change::Audit(Box::new(line)));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{DispatchStack, MemoryKeep, StoreOp, StoreStack, TaskDone, fixture},
        protocol::Json,
    };

    fn lines(keep: &MemoryKeep) -> Vec<AuditLine> {
        keep.audit().iter().map(|it| serde_json::from_str(&it.line).unwrap()).collect()
    }

    #[test]
    fn a_dispatch_is_written_down_before_and_after_and_never_what_it_carries() {
        let keep = Arc::new(MemoryKeep::new(Clock::manual(0)));
        let audit = Audit::new("audit", Arc::clone(&keep) as Arc<dyn Keep>);
        let stack = DispatchStack::builder().observe(audit).build();
        let dispatch = fixture::dispatch(r#"{"secret":"violet"}"#);
        stack.run(dispatch, &fixture::Echo).now_or_never().unwrap().unwrap();
        let lines = lines(&keep);
        let events: Vec<_> = lines.iter().map(|it| it.event.as_str()).collect();
        assert_eq!(events, ["dispatched", "settled"]);
        assert_eq!(lines[1].outcome.as_deref(), Some("done"));
        assert!(keep.audit().iter().all(|it| !it.line.contains("violet")));
    }

    #[test]
    fn a_parked_attempt_is_settled_later_and_a_second_delivery_is_not_counted() {
        let keep = Arc::new(MemoryKeep::new(Clock::manual(0)));
        let audit = Audit::new("audit", Arc::clone(&keep) as Arc<dyn Keep>);
        let stack = DispatchStack::builder().observe(audit).build();
        let dispatch = fixture::dispatch("1");
        let about = Arc::clone(&dispatch.about);
        stack.run(dispatch, &fixture::Parks).now_or_never().unwrap().unwrap();
        let again = fixture::with("1", |about| about.again = true);
        stack.run(again, &fixture::Parks).now_or_never().unwrap().unwrap();
        let done = TaskDone::new(Json::null());
        stack.settle(&about, &Json::null(), Ok(done)).unwrap();
        let lines = lines(&keep);
        let events: Vec<_> = lines.iter().map(|it| it.event.as_str()).collect();
        assert_eq!(events, ["dispatched", "settled"]);
    }

    #[test]
    fn state_is_written_down_by_key_and_never_by_value() {
        let keep = Arc::new(MemoryKeep::new(Clock::manual(0)));
        let audit = Audit::new("audit", Arc::clone(&keep) as Arc<dyn Keep>);
        let stack = StoreStack::builder().observe(audit).build();
        let call = StoreCall {
            op: StoreOp::Write,
            run: None,
            principal: "root".into(),
            scope: "global".into(),
            key: "k".into(),
            value: Some(Json::parse("\"violet\"").unwrap()),
        };
        stack.run(call, &mut |_| Ok(Json::null())).unwrap();
        let lines = lines(&keep);
        assert_eq!(lines[0].target.as_deref(), Some("global/k"));
        assert!(!keep.audit()[0].line.contains("violet"));
    }
}
