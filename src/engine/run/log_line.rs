//! The lines of the log about runs: one each for a start, an end, a failed attempt, and a task that
//! was taken outside of the host.
//!
//! The lines are made of the facts of a batch, and written once the batch is durable. Their target is
//! `moonswarm::runs`, so that a filter can leave them out.

use data_encoding::HEXLOWER;

use crate::{
    journal::{Entry, Fact, Outcome},
    protocol::{Failure, RunId, TraceParent, failure::kind},
    store::Header,
};

/// A line of the log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogLine {
    run: RunId,
    blueprint: String,
    /// The ids of the trace and the span, in hex.
    trace: Option<(String, String)>,
    says: LogEvent,
}

#[derive(Debug, Clone, PartialEq)]
enum LogEvent {
    Started { by: String },
    Ended { status: &'static str, error: Option<Failure>, steps: u32, ms: u64 },
    AttemptFailed { step: u32, attempt: u32, error: Failure },
    Interrupted { attempts: usize },
    Taken { step: u32, attempt: u32, worker: String },
}

/// The lines of what a batch stores; `is_taken` says whether a step is done by a
/// person or a worker outside of the host, and `span` names the span of a step.
pub(crate) fn lines(
    run: RunId,
    header: &Header,
    entries: &[Entry],
    is_taken: impl Fn(u32) -> bool,
    span: impl Fn(u32) -> Option<TraceParent>,
) -> Vec<LogLine> {
    let mut all: Vec<LogEvent> = Vec::new();
    let mut attempts = 0;
    for entry in entries {
        match &entry.fact {
            Fact::RunStarted(started) if started.generation == 0 => {
                all.push(LogEvent::Started { by: started.principal.clone() });
            }
            Fact::AttemptClosed(it) if it.error.is(kind::INTERRUPTED) => attempts += 1,
            Fact::AttemptClosed(it) => {
                let (step, attempt, error) = (it.step, it.attempt, it.error.clone());
                all.push(LogEvent::AttemptFailed { step, attempt, error });
            }
            Fact::AttemptDelivered { step, attempt, worker, .. } if is_taken(*step) => {
                let (step, attempt, worker) = (*step, *attempt, worker.clone());
                all.push(LogEvent::Taken { step, attempt, worker });
            }
            Fact::RunEnded(outcome) => {
                let (status, error) = match outcome {
                    Outcome::Completed(_) => ("completed", None),
                    Outcome::Failed(error) => ("failed", Some(error.clone())),
                    Outcome::Canceled(_) => ("canceled", None),
                };
                let ms = entry.at_ms.saturating_sub(header.created_ms);
                all.push(LogEvent::Ended { status, error, steps: header.steps, ms });
            }
            _ => {}
        }
    }
    if attempts > 0 {
        all.push(LogEvent::Interrupted { attempts });
    }
    let line = |says: LogEvent| {
        let hex = |it: TraceParent| (HEXLOWER.encode(&it.trace), HEXLOWER.encode(&it.span));
        let trace = span(says.step()).map(hex);
        LogLine { run, blueprint: header.blueprint.clone(), trace, says }
    };
    all.into_iter().map(line).collect()
}

impl LogEvent {
    /// Returns the step that it is about; 0 for the run.
    fn step(&self) -> u32 {
        match self {
            Self::AttemptFailed { step, .. } | Self::Taken { step, .. } => *step,
            Self::Started { .. } | Self::Ended { .. } | Self::Interrupted { .. } => 0,
        }
    }
}

impl LogLine {
    /// Writes it.
    pub(crate) fn write(&self) {
        let Self { run, blueprint, trace, says } = self;
        let (trace_id, span_id) =
            trace.as_ref().map(|(trace, span)| (trace.as_str(), span.as_str())).unzip();
        match says {
            LogEvent::Started { by } => {
                tracing::info!(target: "moonswarm::runs", %run, trace_id, span_id, blueprint, by, "run started");
            }
            LogEvent::Ended { status, error: None, steps, ms } => {
                tracing::info!(target: "moonswarm::runs", %run, trace_id, span_id, blueprint, status, steps, ms, "run ended");
            }
            LogEvent::Ended { status, error: Some(Failure { kind, message, .. }), steps, ms } => {
                tracing::warn!(
                    target: "moonswarm::runs",
                    %run, trace_id, span_id, blueprint, status, kind, error = message, steps, ms, "run ended"
                );
            }
            LogEvent::AttemptFailed { step, attempt, error: Failure { kind, message, .. } } => {
                tracing::warn!(
                    target: "moonswarm::runs",
                    %run, trace_id, span_id, blueprint, step, attempt, kind, error = message, "attempt failed"
                );
            }
            LogEvent::Interrupted { attempts } => {
                tracing::warn!(
                    target: "moonswarm::runs",
                    %run, trace_id, span_id, blueprint, attempts, "attempts interrupted by a stop of the host; each is tried again"
                );
            }
            LogEvent::Taken { step, attempt, worker } => {
                tracing::info!(
                    target: "moonswarm::runs",
                    %run, trace_id, span_id, blueprint, step, attempt, worker, "task taken"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::AttemptClosed;

    fn entry(fact: Fact) -> Entry {
        Entry::new(1, 1_500, fact)
    }

    fn closed(step: u32, kind: &str) -> Entry {
        entry(Fact::AttemptClosed(Box::new(AttemptClosed {
            step,
            attempt: 1,
            error: Failure::new(kind, "why"),
            usage: None,
            retry_at_ms: 0,
            counts: true,
        })))
    }

    #[test]
    fn what_happened_to_a_run_is_a_line_each_and_interruptions_are_counted() {
        let header = Header { steps: 3, blueprint: "b".into(), ..Header::fresh(1, 1_000) };
        let entries = [
            closed(1, kind::INTERRUPTED),
            closed(2, kind::INTERRUPTED),
            closed(3, "process"),
            entry(Fact::RunEnded(Outcome::Failed(Failure::new("red", "no")))),
        ];
        let lines = lines(RunId::new(1, 1_000), &header, &entries, |_| false, |_| None);
        let says: Vec<_> = lines.into_iter().map(|line| line.says).collect();
        let error = Failure::new("process", "why");
        assert_eq!(
            says,
            [
                LogEvent::AttemptFailed { step: 3, attempt: 1, error },
                LogEvent::Ended {
                    status: "failed",
                    error: Some(Failure::new("red", "no")),
                    steps: 3,
                    ms: 500
                },
                LogEvent::Interrupted { attempts: 2 },
            ]
        );
    }

    #[test]
    fn only_who_works_outside_takes_a_task() {
        let taken = |step| {
            let worker = "w".to_owned();
            entry(Fact::AttemptDelivered { step, attempt: 1, worker, deadline_ms: None })
        };
        let header = Header::fresh(1, 0);
        let entries = [taken(1), taken(2)];
        let lines = lines(RunId::new(1, 0), &header, &entries, |step| step == 2, |_| None);
        let worker = "w".to_owned();
        assert_eq!(lines[0].says, LogEvent::Taken { step: 2, attempt: 1, worker });
        assert_eq!(lines.len(), 1);
    }
}
