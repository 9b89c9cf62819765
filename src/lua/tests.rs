//! The fixture, and the tests by theme.

mod attacks;
mod editions;
mod flows;
mod library;
mod middleware;
mod moments;
mod nodes;
mod origins;
mod sandbox;
mod spawned;
mod tracebacks;
mod values;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    flow::{Advance, Command, Input, NextAction, RunLimits, StepOp},
    journal::{Note, StepKey},
    protocol::{Failure, Json},
};

struct Bundle(BTreeMap<String, String>, String);

impl Files for Bundle {
    fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    fn entry(&self) -> &str {
        &self.1
    }
}

fn bundle(files: &[(&str, &str)]) -> Arc<Source> {
    bundle_at("main.lua", files)
}

fn bundle_at(entry: &str, files: &[(&str, &str)]) -> Arc<Source> {
    let files: BTreeMap<_, _> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let key = format!("{files:?}");
    let host = Host {
        agent_md: |text, path| Ok(json!({ "system": text, "description": path })),
        ..super::program::HOST
    };
    Arc::new(Source::new(key, Bundle(files, entry.to_owned()), host))
}

/// A blueprint whose flow has `body`.
fn flow_source(body: &str) -> Arc<Source> {
    bundle(&[("main.lua", &flow_text(body))])
}

fn flow_text(body: &str) -> String {
    format!(
        "local swarm = require(\"swarm\") local s = swarm.schema \
         return swarm.blueprint {{ name = \"t\", flow = function(ctx, input) {body}\nend }}"
    )
}

fn facts(input: &Value) -> RunFacts {
    RunFacts {
        run_id: "run_1".to_owned(),
        blueprint: "t@1".to_owned(),
        input: Json::from(input),
        trigger: Json::from(&json!({ "kind": "test" })),
        seed: 42,
    }
}

/// A shard without an engine.
struct Bench {
    vms: Vms,
    _watchdog: Watchdog,
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let watchdog = Watchdog::start().unwrap();
        Self { vms: Vms::new(limits, &watchdog), _watchdog: watchdog }
    }

    fn flow(&mut self, source: &Arc<Source>) -> ScriptFlow {
        self.vms.start(source, facts(&json!({})), RunLimits::default()).unwrap()
    }

    /// Runs `body` to its end; every task completes at once with what `answer` makes of it.
    fn run(
        &mut self,
        body: &str,
        answer: impl FnMut(&StepOp) -> Result<Value, Failure>,
    ) -> (NextAction, Vec<Command>) {
        self.run_with(&flow_source(body), &json!({}), answer)
    }

    fn run_with(
        &mut self,
        source: &Arc<Source>,
        input: &Value,
        answer: impl FnMut(&StepOp) -> Result<Value, Failure>,
    ) -> (NextAction, Vec<Command>) {
        let mut flow = self.vms.start(source, facts(input), RunLimits::default()).unwrap();
        drive(&mut flow, answer)
    }

    /// Returns the value of `body`.
    fn value(&mut self, body: &str) -> Value {
        match self.run(body, echo).0 {
            NextAction::Complete(json) => json.to_value(),
            other => panic!("{body}: {other:?}"),
        }
    }

    /// Returns the failure of `body`.
    fn failure(&mut self, body: &str) -> Failure {
        match self.run(body, echo).0 {
            NextAction::Fail(failure) => failure,
            other => panic!("{body}: {other:?}"),
        }
    }
}

/// Advances a flow, oldest step first, until it ends or waits for nothing.
/// The start of the flows of these tests, in Unix milliseconds.
const BEGUN_MS: u64 = 1_000;

fn drive(
    flow: &mut ScriptFlow,
    mut answer: impl FnMut(&StepOp) -> Result<Value, Failure>,
) -> (NextAction, Vec<Command>) {
    let mut all = Vec::new();
    let mut open: Vec<(StepKey, StepOp)> = Vec::new();
    let mut now_ms = BEGUN_MS;
    let mut input = Input::Start;
    loop {
        let Advance { commands, next } = flow.advance(input, now_ms);
        for command in &commands {
            match command {
                Command::Schedule(request) => open.push((request.key.clone(), request.op.clone())),
                Command::CancelScope(scope) => open.retain(|(key, _)| !key.scope.is_within(scope)),
                Command::Note { .. } => {}
            }
        }
        all.extend(commands);
        if next == NextAction::More {
            input = Input::More;
            continue;
        }
        if next != NextAction::Wait || open.is_empty() {
            return (next, all);
        }
        let (key, op) = open.remove(0);
        now_ms = op.wake_at_ms().map_or(now_ms, |at| at.max(now_ms));
        input = match answer(&op) {
            Ok(output) => Input::Completed { key, output: Json::from(&output) },
            Err(failure) => Input::Failed { key, failure },
        };
    }
}

/// Gives every task its input back, and everything else null.
fn echo(op: &StepOp) -> Result<Value, Failure> {
    Ok(match op {
        StepOp::Task(task) => task.input.to_value(),
        _ => Value::Null,
    })
}

fn key_of(command: &Command) -> String {
    match command {
        Command::Schedule(request) => format!("{} {}", request.key, request.op.name()),
        Command::CancelScope(scope) => format!("cancel {scope}"),
        Command::Note { key, note } => match note {
            Note::Log { level, message, .. } => format!("{key} {level}: {message}"),
            Note::Status { text, .. } => format!("{key} status: {text}"),
            Note::Event { topic, .. } => format!("{key} event: {topic}"),
        },
    }
}

fn keys(commands: &[Command]) -> Vec<String> {
    commands.iter().map(key_of).collect()
}
