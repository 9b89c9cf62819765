//! A run as lines: one for each change, for where there is no terminal.

use std::collections::HashMap;

use super::{text::printable, time::elapsed, tree::title};
use crate::engine::{EventView, RunView, StepView};

/// Remembers what was said, and says what is new.
#[derive(Debug, Default)]
pub struct Changes {
    steps: HashMap<u32, (String, u32)>,
    status: String,
    text: Option<String>,
}

impl Changes {
    /// The lines that are new; `run_ms` is how long the run goes on.
    pub fn lines<'a>(
        &mut self,
        run: &RunView,
        steps: impl IntoIterator<Item = &'a StepView>,
        run_ms: u64,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let status = run.status.as_str();
        let new = (status != self.status).then(|| format!("run {status}"));
        self.status = status.to_owned();
        // What it did stands between its beginning and its end.
        let (before, after) = match run.status.is_ended() {
            true => (None, new),
            false => (new, None),
        };
        lines.extend(before);
        for step in steps {
            let now = (step.state.clone(), step.attempts);
            if self.steps.get(&step.seq) != Some(&now) {
                lines.extend(step_line(step));
                self.steps.insert(step.seq, now);
            }
        }
        if run.status_text != self.text {
            lines.extend(run.status_text.as_deref().map(printable));
            self.text.clone_from(&run.status_text);
        }
        lines.extend(after);
        lines.into_iter().map(|line| stamp(run_ms, &line)).collect()
    }

    /// Forgets steps up to a number: nothing new is said of them.
    pub fn forget(&mut self, before: u32) {
        if before > 0 {
            self.steps.retain(|seq, _| *seq > before);
        }
    }

    /// A line with how long the run goes on.
    pub fn stamped(run_ms: u64, line: &str) -> String {
        stamp(run_ms, line)
    }

    /// The line of an event that no step or status shows: what the flow logs or publishes.
    pub fn event(event: &EventView, run_ms: u64) -> Option<String> {
        if event.kind != "log" {
            return None;
        }
        let data = event.data.to_value();
        let text = |key: &str| data.get(key).and_then(|value| value.as_str()).map(printable);
        let level = text("level").unwrap_or_else(|| "info".into());
        let line = format!("{level}: {}", text("message")?);
        Some(stamp(run_ms, &line))
    }
}

fn stamp(run_ms: u64, line: &str) -> String {
    format!("[+{}] {line}", elapsed(run_ms))
}

fn step_line(step: &StepView) -> Option<String> {
    let verb = verb(step)?;
    let mut line = format!("step {} {} {verb}", step.seq, title(step));
    if let Some(ms) = step.duration_ms {
        line.push_str(&format!(" ({})", elapsed(ms)));
    }
    if let Some(error) = &step.error {
        line.push_str(&format!(": {}: {}", printable(&error.kind), printable(&error.message)));
    }
    Some(line)
}

fn verb(step: &StepView) -> Option<String> {
    Some(match (step.state.as_str(), step.attempts) {
        ("pending", _) => return None,
        ("processing", 0 | 1) => "started".to_owned(),
        ("processing", n) => format!("started, attempt {n}"),
        (ended, _) => ended.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::fixture::{run, step},
        protocol::Json,
        store::RunStatus,
    };

    #[test]
    fn a_line_is_said_once_for_each_change() {
        let mut changes = Changes::default();
        let running = run(RunStatus::Running);
        let first = [step(1, "", 0, "pending"), step(2, "", 1, "processing")];
        assert_eq!(
            changes.lines(&running, &first, 0),
            ["[+0.0s] run running", "[+0.0s] step 2 agent2 started"]
        );
        let mut again = step(2, "", 1, "processing");
        again.attempts = 2;
        let second = [step(1, "", 0, "completed"), again];
        assert_eq!(
            changes.lines(&running, &second, 1_200),
            ["[+1.2s] step 1 agent1 completed (0.8s)", "[+1.2s] step 2 agent2 started, attempt 2"]
        );
        assert!(changes.lines(&running, &second, 1_300).is_empty());
        let said = RunView { status_text: Some("half way".into()), ..running };
        assert_eq!(changes.lines(&said, &[], 2_000), ["[+2.0s] half way"]);
    }

    #[test]
    fn a_log_line_is_shown_without_what_steers_a_terminal() {
        let event = |kind: &str, data: &str| EventView {
            seq: Some(4),
            kind: kind.into(),
            at: String::new(),
            data: Json::parse(data).unwrap(),
        };
        let log = event("log", r#"{"level":"warn","message":"a\u001b[2Jb"}"#);
        assert_eq!(Changes::event(&log, 500).unwrap(), "[+0.5s] warn: a [2Jb");
        assert_eq!(Changes::event(&event("step.completed", "{}"), 0), None);
    }
}
